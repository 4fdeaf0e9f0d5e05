"""The driver, launches and their errors, with a driver that records instead of a GPU."""

from __future__ import annotations

import ctypes
import sys
from array import array
from dataclasses import replace
from typing import Any

import pytest

from taskmap.backend.cuda import driver as cuda_driver
from taskmap.backend.cuda.driver import Driver
from taskmap.backend.cuda.launch import CudaLauncher, DeviceKernel, LaunchContext
from taskmap.backend.cuda.source import AFTER_PREVIOUS_GRID, CudaSource
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.backend.program.executable import Executable
from taskmap.backend.program.memory_plan import plan_memory
from taskmap.backend.program.structure import BufferKind, ExternCall, Launch, Program, ProgramBuffer
from taskmap.errors import (
    CompilerNotFoundError,
    DeviceError,
    DeviceMemoryError,
    IndexOutOfRangeError,
    InputError,
    NoDeviceError,
    UnsupportedError,
)
from taskmap.ir.construct import ceil_div
from taskmap.ir.nodes import Var
from taskmap.ir.types import f16
from tests.backend.fake_driver import FakeApi, Launched, driver

N = Var("s0")
M = Var("n")
ARENA = 1 << 20
SCALE = CudaSource("scale", "", (), False, (ceil_div(M, 256),), 256, 0, (M,))
TAKE = CudaSource("take", "", (), True, (4, 2), 128, 96 << 10, (), (2, 1, 1))


def buffers(*kinds: BufferKind) -> tuple[ProgramBuffer, ...]:
    return tuple(ProgramBuffer(kind, N * 4) for kind in kinds)


I, O, A, T, C = BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.ARENA, BufferKind.TENSOR, BufferKind.CONSTANT  # noqa: E741


AROUND = LaunchContext(lambda size: (ARENA, object()), lambda: 99)


def build(api: FakeApi, program: Program, *sources: CudaSource, **how: Any) -> Executable:
    driver = Driver(api)
    kernels = {s.symbol: DeviceKernel(s, driver.load(b"image", s.symbol, "NVRTC 13.0 for sm_90a")) for s in sources}
    single = how.pop("single", False)
    launcher = CudaLauncher(program, kernels, driver, 0, AROUND, **how)
    return Executable(program, plan_memory(program), launcher, single=single)


def table(*addresses: int) -> array[int]:
    return array("q", addresses)


def test_launches_with_their_arguments_on_the_callers_stream() -> None:
    api = FakeApi(counts={"scale": 3})
    program = Program(buffers(C, I, O, A), (Launch("scale", (1, 3), (N,)), Launch("scale", (3, 2), (N + 1,))), (N,))
    run = build(api, program, SCALE)
    run(table(100, 200), (1000,), table(300))
    first, second = api.launches
    assert first == Launched("scale", (4, 1, 1), 256, 0, 99, (), [100, ARENA, 1000])
    assert second.values == [ARENA, 200, 1001]
    run(table(100, 200), (256,), table(300))
    assert api.launches[2].grid == (1, 1, 1)


def test_an_empty_grid_is_not_launched() -> None:
    api = FakeApi(counts={"scale": 3})
    build(api, Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,)), SCALE)(table(1, 2), (0,))
    assert not api.launches


def test_shared_memory_and_clusters_are_asked_for_once() -> None:
    api = FakeApi(counts={"take": 3})
    big = replace(TAKE, cluster=(16, 1, 1))
    run = build(api, Program(buffers(I, O), (Launch("take", (0, 1), (), True),), (N,)), big)
    for _ in range(2):
        run(table(1, 2), (5,))
    assert api.calls == [
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 96 << 10, "take", 0),
        ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, "take", 0),
    ]
    assert api.launches[0].cluster == (16, 1, 1)
    assert api.launches[0].grid == (4, 2, 1)
    assert api.launches[0].shared == 96 << 10


def test_only_kernels_that_wait_for_the_grid_before_them_start_early() -> None:
    api = FakeApi(counts={"scale": 3})
    program = Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,))
    waiting = replace(SCALE, text=f"{SCALE.text} {AFTER_PREVIOUS_GRID};", cluster=(2, 1, 1))
    for source in (SCALE, waiting):
        build(api, program, source)(table(100, 200), (1000,))
    assert [(launch.starts_early, launch.cluster) for launch in api.launches] == [(False, ()), (True, (2, 1, 1))]


def out_of_range(launched: Launched) -> None:
    if launched.values[0] < 0:
        ctypes.c_int.from_address(launched.values[-1]).value = 1


TAKING = Program(
    buffers(I, O, A),
    (Launch("take", (0, 2), (), True, "aten.embedding", "model.py:3"), Launch("take", (2, 1), (), True)),
    (N,),
)


def test_an_index_out_of_range_is_reported_by_the_next_call_once() -> None:
    api = FakeApi(counts={"take": 3}, on_launch=out_of_range)
    run = build(api, TAKING, TAKE)
    run(table(-1, 2), (5,))
    with pytest.raises(IndexOutOfRangeError, match=r"index out of range in aten\.embedding\n  model\.py:3"):
        run(table(1, 2), (5,))
    run(table(1, 2), (5,))


def test_a_blocking_launch_reports_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    api = FakeApi(counts={"take": 3}, on_launch=out_of_range)
    run = build(api, TAKING, TAKE)
    with pytest.raises(IndexOutOfRangeError):
        run(table(-1, 2), (5,))
    assert ("synchronize", 99) in api.calls
    assert len(api.launches) == 1


def test_extern_calls_stand_between_launches() -> None:
    api = FakeApi(counts={"scale": 3})
    steps = (Launch("scale", (0, 2), (N,)), ExternCall(0, (2, 1)), Launch("scale", (1, 2), (N,)))
    run = build(api, Program(buffers(I, T, T), steps, (N,)), SCALE)
    seen = []

    def extern(index: int, io: array[int]) -> None:
        seen.append((index, len(api.launches)))
        io[1] = 555

    run(table(100, 0, 300), (7,), extern=extern)
    assert seen == [(0, 1)]
    assert api.launches[1].values == [555, 300, 7]
    with pytest.raises(InputError, match="extern call 0 has nothing to call"):
        run(table(100, 0, 300), (7,))


def test_steps_are_timed_with_events() -> None:
    api = FakeApi(counts={"scale": 3})
    run = build(api, Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),) * 2, (N,)), SCALE, single=True)
    run(table(1, 2), (5,))
    assert run.runs[0].seconds == (0.0015, 0.0015)
    assert [c[0] for c in api.calls] == ["destroy"] * 3


def test_the_wrong_number_of_addresses() -> None:
    run = build(FakeApi(), Program(buffers(I, O), (), (N,)))
    with pytest.raises(InputError, match="needs 2 addresses, 1 sizes and 0 constants was called with 1 addresses"):
        run(table(1), (5,))


def test_a_thread_without_a_context_gets_the_primary_one() -> None:
    api = FakeApi(counts={"scale": 3}, context=0)
    build(api, Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,)), SCALE)(table(1, 2), (5,))
    assert api.context == 7


def test_what_a_device_is() -> None:
    info = Driver(FakeApi()).device(0)
    assert (info.name, info.capability, info.multiprocessors) == ("NVIDIA Fake", (9, 0), 132)
    with pytest.raises(NoDeviceError, match=r"no GPU number 1\n  the driver sees 1"):
        Driver(FakeApi()).device(1)


@pytest.mark.parametrize(
    ("api", "message"),
    [
        (FakeApi(failures={"cuInit": "absent"}), r"no NVIDIA driver\n  Failed to dlopen libcuda\.so\.1\.\n.*cuda-sim"),
        (FakeApi(failures={"cuInit": "CUDA_ERROR_NO_DEVICE"}), "there is no NVIDIA GPU"),
        (FakeApi(version=12040), r"driver is too old\n  it supports CUDA 12\.4, and kernels are compiled for 13\.0"),
    ],
)
def test_no_driver_that_can_be_used(api: FakeApi, message: str) -> None:
    with pytest.raises(NoDeviceError, match=message):
        Driver(api)


def test_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    cuda_driver.open_driver.cache_clear()
    with pytest.raises(CompilerNotFoundError, match="pip install 'cuda-bindings"):
        cuda_driver.open_driver()


@pytest.mark.parametrize(
    ("function", "status", "error", "message"),
    [
        ("cuLaunchKernelEx", "CUDA_ERROR_OUT_OF_MEMORY", DeviceMemoryError, "no memory left"),
        (
            "cuLaunchKernelEx",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            DeviceError,
            r"accessed memory that is nobody's\n  noticed at scale, grid 1 × 1 × 1.*\n.*\n.*start it again",
        ),
        ("cuLaunchKernelEx", "CUDA_ERROR_MISALIGNED_ADDRESS", DeviceError, "at a misaligned address"),
        ("cuLaunchKernelEx", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", DeviceError, "more registers or threads"),
        ("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", DeviceError, "refused a call\n  scale, grid"),
        ("cuLibraryLoadData", "CUDA_ERROR_NO_BINARY_FOR_GPU", NoDeviceError, "compiled by NVRTC 13.0 for sm_90a"),
        ("cuLibraryLoadData", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", NoDeviceError, "newer than the driver"),
        ("cuLibraryLoadData", "CUDA_ERROR_INVALID_IMAGE", NoDeviceError, "nvidia-cuda-nvrtc==13"),
    ],
)
def test_what_the_driver_refuses(function: str, status: str, error: type[Exception], message: str) -> None:
    api = FakeApi(counts={"scale": 3}, failures={function: status})
    with pytest.raises(error, match=message):
        build(api, Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,)), SCALE)(table(1, 2), (5,))


def test_an_illegal_access_is_found_at_its_kernel_when_launches_block() -> None:
    api = FakeApi(counts={"scale": 3}, failures={"cuStreamSynchronize": "CUDA_ERROR_ILLEGAL_ADDRESS"})
    run = build(api, Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,)), SCALE, blocking=True)
    with pytest.raises(DeviceError, match="noticed at scale\n"):
        run(table(1, 2), (5,))


def test_a_first_launch_in_a_capture_is_refused() -> None:
    """It would end the capture; later launches become a part of it."""
    api = FakeApi(counts={"scale": 3}, capturing=True)
    run = build(api, Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,)), SCALE)
    with pytest.raises(UnsupportedError, match=r"being captured(.*\n)*.*once before the capture"):
        run(table(1, 2), (5,))
    api.capturing = False
    run(table(1, 2), (5,))
    api.capturing = True
    run(table(1, 2), (5,))
    assert len(api.launches) == 2


def test_each_launch_is_on_its_own_gpu() -> None:
    """Another current context in the thread makes no difference."""
    api = FakeApi(counts={"scale": 3}, devices=2, context=0)
    program = Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,))
    driver = Driver(api)
    kernel = {"scale": DeviceKernel(SCALE, driver.load(b"image", "scale", "NVRTC 13.0 for sm_90a"))}
    current: list[int] = []
    api.on_launch = lambda _: current.append(api.context)
    runs = [
        Executable(program, plan_memory(program), CudaLauncher(program, kernel, driver, gpu, AROUND)) for gpu in (0, 1)
    ]
    for gpu in (0, 1, 1, 0):
        runs[gpu](table(1, 2), (5,))
    assert current == [7, 8, 8, 7]


def test_memory_that_runs_out_in_the_middle_costs_one_run() -> None:
    api = FakeApi(counts={"scale": 3})
    program = Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),) * 2, (N,))
    run = build(api, program, SCALE)
    api.on_launch = lambda _: api.failures.update({"cuLaunchKernelEx": "CUDA_ERROR_OUT_OF_MEMORY"})
    with pytest.raises(DeviceMemoryError, match="smaller batch"):
        run(table(1, 2), (5,))
    api.on_launch, api.failures = lambda _: None, {}
    run(table(1, 2), (5,))
    assert len(api.launches) == 3


@pytest.mark.parametrize(("version", "refused"), [((13, 0), False), ((13, 4), False), ((14, 0), True)])
def test_a_compiler_that_is_newer_than_the_driver(version: tuple[int, int], refused: bool) -> None:
    """Within a major version, a driver loads the output of newer compilers."""
    driver = Driver(FakeApi(version=13010))
    if not refused:
        driver.refuse_newer("NVRTC", version)
        return
    with pytest.raises(
        NoDeviceError, match=r"older than the compiler(.*\n)*.*supports CUDA 13\.1, (.*\n)*.*nvrtc==13\.\*"
    ):
        driver.refuse_newer("NVRTC 14.0", version)


def test_too_much_shared_memory() -> None:
    api = FakeApi(counts={"take": 3}, shared=64 << 10)
    run = build(api, Program(buffers(I, O), (Launch("take", (0, 1), (), True),), (N,)), TAKE)
    with pytest.raises(NoDeviceError, match="needs 98304 bytes in a block, and GPU 0 has 65536"):
        run(table(1, 2), (5,))


def test_tensor_maps_are_made_for_where_the_tensors_lie() -> None:
    seen = MapParameter(1, f16, (N, 64), (64, 1), (32, 64), 128, 8)
    copies = replace(SCALE, symbol="copies", maps=(seen,), dims=(N,), grid=(1,), needs_error=True)
    api = FakeApi(counts={"copies": 5})
    run = build(api, Program(buffers(I, O), (Launch("copies", (0, 1), (N,), True),), (N,)), copies)
    for address in (4096, 4096, 8192):
        run(table(100, address), (1000,))
    maps = [call for call in api.calls if call[0] == "map"]
    assert len(maps) == 2
    _, dtype, rank, address, sizes, strides, box, steps, _, swizzle, *_ = maps[0]
    swizzle = driver.CUtensorMapSwizzle(swizzle)
    assert (dtype.name, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 2, 4096 + 16)
    assert [*sizes, *strides, *box, *steps] == [64, 1000, 128, 64, 32, 1, 1]
    assert swizzle.name == "CU_TENSOR_MAP_SWIZZLE_128B"
    assert [launch.values[:4] for launch in api.launches] == [
        [100, 4096, 1000, 4112],
        [100, 4096, 1000, 4112],
        [100, 8192, 1000, 8208],
    ]
    assert len({launch.values[4] for launch in api.launches}) == 1


def test_memory_that_launches_have_for_themselves() -> None:
    first = replace(SCALE, symbol="first", workspace=(1000, 16), counters=(8,))
    second = replace(SCALE, symbol="second", workspace=(4096,), counters=(300, 4))
    api = FakeApi(counts={"first": 6, "second": 6, "scale": 3})
    steps = [Launch(s, (0, 1), (N,)) for s in ("first", "scale", "second")]
    run = build(api, Program(buffers(I, O, A), tuple(steps), (N,)), first, SCALE, second)
    run(table(100, 200), (1000,))
    assert run.plan.places == {}
    cleared = 512 + 256
    assert [c for c in api.calls if c[0] == "set"] == [("set", ARENA, 0, cleared, 99)]
    assert [launch.values for launch in api.launches] == [
        [100, 200, ARENA + cleared, ARENA + cleared + 1024, ARENA, 1000],
        [100, 200, 1000],
        [100, 200, ARENA + cleared, ARENA, ARENA + 512, 1000],
    ]


def test_nothing_is_cleared_without_counters() -> None:
    api = FakeApi(counts={"scale": 4})
    scale = replace(SCALE, workspace=(64,))
    build(api, Program(buffers(I, O), (Launch("scale", (0, 1), (N,)),), (N,)), scale)(table(1, 2), (5,))
    assert api.launches[0].values == [1, 2, ARENA, 5]
    assert not [c for c in api.calls if c[0] == "set"]
