"""The target cuda on a driver that records launches and lets the simulator execute them: everything except the GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskmap.backend.cuda import compile as cuda_compile
from taskmap.backend.cuda.compile import CudaBinary
from taskmap.backend.cuda.driver import Driver
from taskmap.backend.cuda.launch import LaunchContext
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.program.arena import NO_ARENA
from taskmap.backend.program.structure import BufferKind, Launch, Program, ProgramBuffer
from taskmap.backend.sim.building import build_kernel
from taskmap.backend.sim.launch import SimCall, SimLauncher
from taskmap.backend.store.objects import KernelStore
from taskmap.compile.runtime import CompiledGraph
from taskmap.compile.session import Compilation, Session
from taskmap.compile.task_store import TaskStore
from taskmap.errors import IndexOutOfRangeError, KernelResourceError, NoDeviceError
from taskmap.ir.nodes import Kernel
from taskmap.options import Options
from taskmap.targets.choose import gpu_target
from taskmap.targets.cuda import CudaPlatform, cuda_platform
from taskmap.torch_backend import compile_captured
from tests.backend.fake_driver import FakeApi, Launched
from tests.taskmap.compare import assert_like


@dataclass(frozen=True)
class RecordingPlatform(CudaPlatform):
    """Remembers the sources, so that the simulator can run the launched kernels."""

    sources: dict[str, CudaSource] = field(default_factory=dict)

    def generate(self, kernel: Kernel) -> CudaSource:
        source = super().generate(kernel)
        self.sources[source.symbol] = source
        return source


def execute(sources: dict[str, CudaSource], store: KernelStore, launched: Launched) -> None:
    """Does the work of the GPU."""
    source = replace(sources[launched.symbol], workspace=(), counters=())  # their addresses are among the values
    count = len(launched.values) - len(source.dims) - source.needs_error
    addresses, sizes = launched.values[:count], launched.values[count : count + len(source.dims)]
    buffers = tuple(ProgramBuffer(BufferKind.INPUT, 1) for _ in addresses)
    launch = Launch(source.symbol, tuple(range(count)), tuple(sizes), source.needs_error)
    launcher = SimLauncher(Program(buffers, (launch,)), {source.symbol: build_kernel(source, store, checked=False)})
    try:
        SimCall(launcher, NO_ARENA, lambda _: IndexOutOfRangeError("")).launch(0, addresses, sizes)
    except IndexOutOfRangeError:
        ctypes.c_int.from_address(launched.values[-1]).value = 1


class Gpu:
    """A GPU whose memory is the host's."""

    def __init__(self, tmp_path: Path, **options: object) -> None:
        self.options = Options.from_user(None, options)
        self.api = FakeApi()
        store = KernelStore()
        made = cuda_platform(self.options, torch.device("cpu"), Driver(self.api))
        own = LaunchContext(self.allocate, lambda: 99)
        fields = {name: getattr(made, name) for name in CudaPlatform.__dataclass_fields__}
        self.platform = RecordingPlatform(**{**fields, "surroundings": own})
        self.api.on_launch = lambda launched: execute(self.platform.sources, store, launched)
        self.api.on_set = ctypes.memset
        self.api.counts = Counts(self.platform.sources)
        self.session = Session(self.options, self.platform, TaskStore(tmp_path / "tasks"))

    def allocate(self, size: int) -> tuple[int, object]:
        block = torch.empty(size + 16, dtype=torch.uint8)
        return block.data_ptr() + 15 & ~15, block

    def compiled(self, function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = torch.compile(
            function, backend=partial(compile_captured, session=self.session), **how
        )
        return made


class Counts(dict[str, int]):
    """The number of a kernel's parameters, counted in its text."""

    def __init__(self, sources: dict[str, CudaSource]) -> None:
        super().__init__()
        self.sources = sources

    def __missing__(self, symbol: str) -> int:
        text = self.sources[symbol].text
        start = text.index(f"{symbol}(")
        return text[start : text.index("{", start)].count(",") + 1


def test_a_network_launches_its_kernels_on_the_stream(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    model = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 10), nn.Softmax(-1)).eval()
    x = torch.randn(37, 64)
    with torch.no_grad():
        function = gpu.compiled(model)
        assert_like(function(x), model(x), 1e-4, 1e-5)
        first = len(gpu.api.launches)
        x = torch.randn(37, 64)
        assert_like(function(x), model(x), 1e-4, 1e-5)
    assert len(gpu.api.launches) == 2 * first > 0
    assert {launch.stream for launch in gpu.api.launches} == {99}
    assert {launch.threads for launch in gpu.api.launches} <= set(range(32, 1025, 32))


def test_sizes_are_passed_and_grids_computed(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    function = gpu.compiled(lambda x: (x * 2).softmax(-1), dynamic=True)
    for n in (3, 40, 1000):
        x = torch.randn(n, 16)
        assert_like(function(x), (x * 2).softmax(-1), 1e-5, 1e-6)
    assert len({launch.grid for launch in gpu.api.launches}) == 3


def test_an_index_out_of_range_is_reported_by_the_next_call(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    table = nn.Embedding(20, 16).eval()
    with torch.no_grad():
        function = gpu.compiled(table)
        function(torch.tensor([3, 20]))
        with pytest.raises(IndexOutOfRangeError, match="embedding"):
            function(torch.tensor([3, 4]))
        assert_like(function(torch.tensor([3, 19])), table(torch.tensor([3, 19])))


def test_the_report_has_resources_of_the_gpu(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path, profile=True)
    gpu.session.record = []
    function = gpu.compiled(lambda x: x.tanh() + 1)
    function(torch.randn(100))
    (compilation,) = gpu.session.record
    assert isinstance(compilation, Compilation)
    (taken,) = compilation.resources.values()
    assert taken.registers > 0
    assert isinstance(compilation.call, CompiledGraph)
    (run,) = compilation.call.executable.runs
    assert run.seconds == (0.0015,)


def test_blocks_that_share_a_sum_have_memory_for_it(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    a, b, c = torch.randn(12, 3000) / 50, torch.randn(3000, 40), torch.randn(40, 9)
    function = partial(gpu.compiled(lambda a, b, c: (a @ b).relu() @ c), c=c)
    want = (a @ b).relu() @ c
    first = function(a, b)
    assert_like(first, want, 1e-4, 1e-4)
    assert any("split=" in source.text for source in gpu.platform.sources.values())
    assert torch.equal(function(a, b), first)
    cleared = [call for call in gpu.api.calls if call[0] == "set"]
    assert len(cleared) == 2  # one for a call
    assert {call[4] for call in cleared} == {99}


def refuse(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Makes the compiler report that this many products spill; returns the first lines of their texts."""
    seen: list[str] = []

    def check(binary: CudaBinary, architecture: str) -> None:
        head = next(line for line in binary.source.text.splitlines() if "cuda." in line)
        if "cuda.matmul" not in head or "spills" in binary.source.allow or len(seen) == times:
            return
        seen.append(head)
        raise KernelResourceError("a kernel has not enough registers", why="8 bytes are stored\nto memory.")

    monkeypatch.setattr(cuda_compile, "check_resources", check)
    return seen


def schedules(gpu: Gpu) -> list[str]:
    assert gpu.session.record is not None
    (compilation,) = gpu.session.record
    assert isinstance(compilation, Compilation)
    return [kernel.schedule for kernel in compilation.kernels.values()]


def test_a_kernel_that_spills_is_made_with_the_next_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = refuse(monkeypatch, 2)
    gpu = Gpu(tmp_path)
    gpu.session.record = []
    a, b = torch.randn(700, 30), torch.randn(30, 650)
    with torch.no_grad():
        assert_like(gpu.compiled(lambda a, b: (a @ b + 1).softmax(1))(a, b), (a @ b + 1).softmax(1), 1e-4, 1e-5)
    assert len(set(seen)) == 2
    (note,) = (s for s in schedules(gpu) if s.startswith("cuda.matmul"))
    first, second = (line.removeprefix("// ") for line in seen)
    assert note.endswith(f" instead of {second} instead of {first}: 8 bytes are stored to memory.")
    assert note.split(" instead of ")[0] not in (first, second)


def test_a_kernel_that_always_spills_is_slow_but_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, 1000)
    gpu = Gpu(tmp_path)
    gpu.session.record = []
    a, b = torch.randn(30, 20), torch.randn(20, 40)
    with torch.no_grad():
        assert_like(gpu.compiled(lambda a, b: a @ b + 1)(a, b), a @ b + 1, 1e-4, 1e-5)
    (note,) = schedules(gpu)
    assert note.endswith(": 8 bytes are stored to memory.")


@pytest.mark.parametrize(
    ("capability", "gpu", "isa"),
    [
        ((8, 0), None, "sm_80"),
        ((9, 0), None, "sm_90a"),
        ((8, 9), None, "sm_89"),
        ((12, 0), None, "sm_120"),
        ((7, 5), None, "sm_75"),
        ((8, 9), "sm_80", "sm_80"),
        ((9, 0), "H200", "sm_90a"),
    ],
)
def test_a_device_has_its_target(capability: tuple[int, int], gpu: str | None, isa: str) -> None:
    info = Driver(FakeApi(capability=capability)).device(0)
    target = gpu_target(Options(gpu=gpu), info)
    assert (target.kind, target.isa, target.cores) == ("cuda", isa, 132)


@pytest.mark.parametrize(
    ("capability", "gpu", "message"),
    [
        ((7, 0), None, r"NVIDIA Fake is too old\n  its compute capability is 7\.0"),
        ((8, 0), "sm_90a", "NVIDIA Fake does not run code for sm_90a"),
        ((10, 0), "sm_90a", "does not run code for sm_90a"),
        ((9, 0), "sm_80", "does not run code for sm_80"),
        ((8, 0), "sm_86", "does not run code for sm_86"),
    ],
)
def test_a_device_without_the_capability(capability: tuple[int, int], gpu: str | None, message: str) -> None:
    info = Driver(FakeApi(capability=capability)).device(0)
    with pytest.raises(NoDeviceError, match=message):
        gpu_target(Options(gpu=gpu), info)


def test_the_name_of_a_product_gives_its_data() -> None:
    info = replace(Driver(FakeApi()).device(0), name="NVIDIA H200")
    assert gpu_target(Options(), info).memory_bandwidth == 4_800_000_000_000
