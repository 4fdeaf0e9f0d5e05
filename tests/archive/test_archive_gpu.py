"""Archives for GPUs: made without one; run in the simulator, and on a driver whose launches the simulator executes."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import taskmap
from taskmap.archive import gpus as archive_gpus
from taskmap.archive import targets as archive_targets
from taskmap.archive.file import MANIFEST, ArchiveFile
from taskmap.backend.cuda.driver import Driver
from taskmap.backend.cuda.memory import DeviceMemory
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.store.objects import KernelStore
from taskmap.errors import ArchiveError, CompilerNotFoundError, DeviceMemoryError, IndexOutOfRangeError
from taskmap.onnx.model import load_model
from tests.archive.archives import Change, changed, kinds
from tests.backend.fake_driver import FakeApi
from tests.onnx.models import FLOAT, convnet, mlp, model
from tests.taskmap.targets.test_cuda import Counts, execute

Arrays = list[np.ndarray[Any, np.dtype[Any]]]
ROOT = Path(__file__).parents[2]


@dataclass
class MemoryApi(FakeApi):
    """A driver with memory of its own: the host's, at addresses that no array has. Only ``room`` bytes are there."""

    room: int = 1 << 30
    blocks: dict[int, Any] = field(default_factory=dict)

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:  # noqa: N802  the driver's names
        if sum(map(len, self.blocks.values())) + size > self.room:
            self.failures["cuMemAlloc"] = "CUDA_ERROR_OUT_OF_MEMORY"
            answer = self._answer("cuMemAlloc", 0)
            del self.failures["cuMemAlloc"]
            return answer
        block = np.full(size + 256, 0xA5, np.uint8)
        address = -(-block.ctypes.data // 256) * 256
        self.blocks[address] = block[: size + 256]
        return self._answer("cuMemAlloc", address)

    def cuMemFree(self, address: int) -> tuple[Any, ...]:  # noqa: N802
        del self.blocks[address]
        return self._answer("cuMemFree")

    def cuMemcpyHtoD(self, target: int, source: int, size: int) -> tuple[Any, ...]:  # noqa: N802
        ctypes.memmove(target, source, size)
        self.calls.append(("write", size))
        return self._answer("cuMemcpyHtoD")

    def cuMemcpyDtoH(self, target: int, source: int, size: int) -> tuple[Any, ...]:  # noqa: N802
        ctypes.memmove(target, source, size)
        self.calls.append(("read", size))
        return self._answer("cuMemcpyDtoH")


@dataclass
class Gpu:
    """A GPU whose driver lets the simulator execute the kernels compiled since its creation."""

    api: MemoryApi
    sources: dict[str, CudaSource]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU of compute capability 9.0."""
    made = Gpu(MemoryApi(), {})
    store = KernelStore()
    add = archive_targets.AbsentBuilder.add

    def recorded(self: archive_targets.AbsentBuilder, source: Any) -> None:
        made.sources[source.symbol] = source
        add(self, source)

    monkeypatch.setattr(archive_targets.AbsentBuilder, "add", recorded)
    monkeypatch.setattr(archive_gpus, "open_driver", lambda: Driver(made.api))
    made.api.on_launch = lambda launched: execute(made.sources, store, launched)
    made.api.on_set = ctypes.memset
    made.api.counts = Counts(made.sources)
    return made


def archived(proto: onnx.ModelProto, path: Path, **options: Any) -> Path:
    """The archive of a model, beside it."""
    onnx.save(proto, path.with_suffix(".onnx"))
    taskmap.compile_onnx(path.with_suffix(".onnx"), path, options=taskmap.Options(**options))
    return path


def attention() -> onnx.ModelProto:
    """Half-precision products that wgmma makes on Hopper, through tensor maps; a constant is folded beforehand."""
    draw = np.random.default_rng(1)
    stored = {
        "w": (draw.standard_normal((64, 96)) / 8).astype(np.float16),
        "g": draw.random((96,)).astype(np.float16),
    }
    nodes = [
        helper.make_node("Sqrt", ["g"], ["root"]),
        helper.make_node("Mul", ["w", "root"], ["scaled"]),
        helper.make_node("MatMul", ["x", "scaled"], ["y"]),
    ]
    return model(nodes, {"x": (int(onnx.TensorProto.FLOAT16), [128, 64])}, ["y"], stored)


def check(path: Path, inputs: dict[str, Any], rtol: float = 1e-4) -> Any:
    """Checks that an archive's results equal the model's on the CPU; returns the loaded archive."""
    loaded = taskmap.load(path)
    for _ in range(2):
        for got, want in zip(loaded(inputs), load_model(path.with_suffix(".onnx"))(inputs), strict=True):
            np.testing.assert_allclose(
                np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=rtol
            )  # fmt: skip
    return loaded


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


def test_an_archive_runs_through_the_driver(tmp_path: Path, gpu: Gpu) -> None:
    """For all sizes of a dimension, and on reused memory."""
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda", gpu="sm_90a")
    loaded = check(path, {"x": numbers(3, 8)})
    assert len(gpu.api.launches) == 6
    assert {launch.stream for launch in gpu.api.launches} == {0}
    count = len(gpu.api.blocks)
    loaded(numbers(3, 8))
    assert len(gpu.api.blocks) == count
    check(path, {"x": numbers(40, 8)})
    assert len({launch.grid for launch in gpu.api.launches}) > 2
    assert {o.entry.rpartition(".")[2] for o in loaded.manifest.objects} == {"cubin"}


def test_convolutions_and_what_is_prepared(tmp_path: Path, gpu: Gpu) -> None:
    proto, inputs = convnet()
    loaded = check(archived(proto, tmp_path / "m.taskmap", target="cuda", gpu="H200"), inputs)
    assert loaded.manifest.machine.gpu == "sm_90a"


def test_outputs_of_all_kinds_and_an_index_out_of_range(tmp_path: Path, gpu: Gpu) -> None:
    loaded = taskmap.load(archived(kinds(), tmp_path / "m.taskmap", target="cuda", gpu="sm_90a"))
    x = np.array([[1, -2, 3], [0, 5, -6]], np.float32)
    u = np.array([1, 2**64 - 1], np.uint64)
    got = dict(zip((p.name for p in loaded.outputs), loaded(x, i=[3, 1], u=u), strict=True))
    np.testing.assert_array_equal(got["row"], np.arange(12, dtype=np.float32).reshape(4, 3)[[3, 1]])
    np.testing.assert_array_equal(got["square"], x * x)
    np.testing.assert_array_equal(got["same"], x)
    np.testing.assert_array_equal(got["whole"], u)
    with pytest.raises(IndexOutOfRangeError, match="Gather"):
        loaded(x, i=[4, 0], u=u)  # this very call
    loaded(x, i=[3, 0], u=u)


def test_tensor_maps_and_shared_memory_are_in_the_archive(tmp_path: Path, gpu: Gpu) -> None:
    """Launch parameters on Hopper are those compiled; the maps are made from the tensors' addresses."""
    half, w = int(onnx.TensorProto.FLOAT16), np.zeros((512, 1024), np.float16)
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (half, [1024, 512])}, ["y"], {"w": w})
    loaded = taskmap.load(archived(proto, tmp_path / "m.taskmap", target="cuda", gpu="sm_90a"))
    (kernel,) = loaded.manifest.kernels.values()
    source = gpu.sources[kernel.symbol]
    fields = ("grid", "threads", "shared_bytes", "cluster", "workspace", "counters", "needs_error", "isa")
    assert [getattr(kernel, f) for f in fields] == [getattr(source, f) for f in fields]
    assert [m.box for m in kernel.maps] == [m.box for m in source.maps] != []
    gpu.api.on_launch = lambda _: None  # the recording driver makes no maps that the simulator could read
    loaded(np.zeros((1024, 512), np.float16))
    (launch,) = gpu.api.launches
    assert launch.shared == source.shared_bytes
    made = [call for call in gpu.api.calls if call[0] == "map"]
    assert [call[3] for call in made] == [launch.values[m.buffer] for m in source.maps]
    assert ("MAX_DYNAMIC_SHARED_SIZE_BYTES" in str(gpu.api.calls)) == (source.shared_bytes > 48 << 10)


def test_a_sum_that_blocks_share(tmp_path: Path, gpu: Gpu) -> None:
    """Workspace and counters are the launch's own, the counters zeros."""
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, [12, 3000])}, ["y"],
                  {"w": numbers(3000, 40) / 50})  # fmt: skip
    path = archived(proto, tmp_path / "m.taskmap", target="cuda", gpu="sm_90a")
    loaded = check(path, {"x": numbers(12, 3000)})
    assert any(k.workspace and k.counters for k in loaded.manifest.kernels.values())
    assert [call for call in gpu.api.calls if call[0] == "set"]


def test_an_archive_profiles_through_events(tmp_path: Path, gpu: Gpu) -> None:
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda", gpu="sm_90a")
    loaded = taskmap.load(path, profile=True)
    loaded(numbers(3, 8))
    ((_, runs),) = loaded.timed_runs()
    assert runs[-1].seconds == (0.0015,) * 3


@pytest.mark.parametrize(
    ("api", "message"),
    [
        ({"capability": (8, 0)}, r"runs code for 'sm_90a'\. Here no GPU here runs"),
        ({"devices": 0}, "there is none"),
        ({"failures": {"cuInit": "absent"}}, "Here there is no NVIDIA driver"),
        ({"failures": {"cuInit": "CUDA_ERROR_NO_DEVICE"}}, "Here there is no NVIDIA GPU"),
        ({"version": 12080}, "the NVIDIA driver is too old"),
    ],
)
def test_the_wrong_gpu_and_none(
    tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, api: dict[str, Any], message: str
) -> None:
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda", gpu="sm_90a")
    monkeypatch.setattr(archive_gpus, "open_driver", lambda: Driver(MemoryApi(**api)))
    with pytest.raises(ArchiveError, match=f"is for another machine\n(.|\n)*{message}"):
        taskmap.load(path)


def test_without_the_bindings_of_cuda(tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda", gpu="sm_90a")

    def absent() -> Driver:
        raise CompilerNotFoundError("the Python bindings of CUDA are not installed")

    monkeypatch.setattr(archive_gpus, "open_driver", absent)
    with pytest.raises(ArchiveError, match="Here the Python bindings of CUDA are not installed"):
        taskmap.load(path)


def put(kernel: int, name: str, value: Any) -> Change:
    def change(document: Any) -> None:
        document["kernels"][kernel][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(0, "threads", 4096), "threads is not a whole number from 1"),
        (put(0, "grid", []), "grid is not one to three sizes"),
        (put(0, "grid", ["n7"]), "is not a size"),
        (put(0, "cluster", [8, 8, 1]), "cluster is not at most 16 blocks"),
        (put(0, "cluster", [1, 1]), "cluster is not three numbers"),
        (put(0, "sizes", 5), "with arguments that it does not take"),
        (put(0, "error", True), "with arguments that it does not take"),
        (put(0, "symbol", "tm_other"), "does not describe the launch"),
        (put(0, "maps", [{"buffer": 9}]), "has no type"),
        (put(0, "maps", [{"buffer": 9, "type": "f16", "shape": [8], "strides": [1], "offset": 0, "box": [8],
                          "swizzle": 0}]), "with arguments that it does not take"),
        (put(0, "maps", [{"buffer": 0, "type": "f16", "shape": [8], "strides": [1], "offset": 0, "box": [8],
                          "swizzle": 5}]), "swizzle is not one of"),
        (put(0, "workspace", ["much"]), "is not a whole number"),
        (lambda d: d["kernels"].append(d["kernels"][0]), "two kernels of the manifest have one name"),
        (lambda d: d["plans"][0].update(launch=["tm_x"]), "is not the name of a kernel"),
        (lambda d: d.pop("kernels"), "has no kernels"),
        (lambda d: d["target"].update(gpu="sm_2x"), "unknown GPU instruction set"),
        (lambda d: d["target"].update(byteorder="big"), "endian"),
        (lambda d: d["target"].update(abi=0), "by convention 0"),
    ],
)  # fmt: skip
def test_manifests_that_are_refused(tmp_path: Path, gpu: Gpu, change: Change, message: str) -> None:
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda", gpu="sm_90a")
    with pytest.raises(ArchiveError, match=message):
        taskmap.load(changed(path, tmp_path / "changed.taskmap", change))


def test_the_host_may_be_another(tmp_path: Path, gpu: Gpu) -> None:
    """GPU machine code does not depend on the processor that launches it."""
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda", gpu="sm_90a")

    def elsewhere(document: Any) -> None:
        document["target"].update(machine="aarch64", os="linux")

    taskmap.load(changed(path, tmp_path / "changed.taskmap", elsewhere))


def test_the_gpu_that_is_not_named(tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is this machine's GPU, or else the simulator's default."""
    for api, isa in ((MemoryApi(), "sm_90a"), (MemoryApi(failures={"cuInit": "absent"}), "sm_80")):
        monkeypatch.setattr(archive_targets, "open_driver", lambda api=api: Driver(api))
        path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda")
        assert json.loads(ArchiveFile(path).entry(MANIFEST).tobytes())["target"]["gpu"] == isa


def test_the_same_model_makes_the_same_bytes(tmp_path: Path) -> None:
    one, two = (
        archived(mlp()[0], tmp_path / n, target="cuda", gpu="sm_90a").read_bytes() for n in ("a.taskmap", "b.taskmap")
    )  # fmt: skip
    assert one == two


def test_memory_is_used_again_and_given_up_when_there_is_no_more() -> None:
    api = MemoryApi(room=3000)
    memory = DeviceMemory(Driver(api), 0)
    first = memory.allocate(1000)
    address = first[0]
    del first
    assert memory.allocate(900)[0] == address  # and is free again at once
    big = memory.allocate(2000)  # not beside the first, which the driver gets back
    assert len(api.blocks) == 1
    with pytest.raises(DeviceMemoryError, match="1000 bytes"):
        memory.allocate(1000)
    del big


def test_a_block_may_end_while_others_are_taken() -> None:
    memory = DeviceMemory(Driver(MemoryApi()), 0)
    block = memory.allocate(1000)
    with memory._lock:  # as when the collector runs in the middle of ``allocate``
        ending = Thread(target=memory.give, args=(block[0], 0), daemon=True)
        ending.start()
        ending.join(10)
        assert not ending.is_alive()


def test_an_archive_for_the_simulator_runs_here(tmp_path: Path) -> None:
    proto, inputs = convnet()
    loaded = check(archived(proto, tmp_path / "c.taskmap", target="cuda-sim"), inputs)
    assert (loaded.manifest.machine.kind, loaded.manifest.machine.gpu) == ("cuda-sim", "sm_80")
    x = numbers(128, 64, dtype=np.float16)
    check(archived(attention(), tmp_path / "a.taskmap", target="cuda-sim", gpu="sm_90a"), {"x": x}, 2e-3)


def test_inputs_that_a_gpu_could_not_load(tmp_path: Path) -> None:
    loaded = taskmap.load(archived(mlp()[0], tmp_path / "m.taskmap", target="cuda-sim"))
    x = np.zeros(8 * 5 + 1, np.float32)[1:].reshape(5, 8)
    x[...] = numbers(5, 8)
    np.testing.assert_array_equal(loaded(x)[0], loaded(x.copy())[0])


def test_the_simulator_of_another_version_is_refused(tmp_path: Path) -> None:
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda-sim")
    with pytest.raises(ArchiveError, match="for the simulator of taskmap '9'"):
        taskmap.load(changed(path, tmp_path / "c.taskmap", lambda d: d.update(taskmap="9")))


def test_an_archive_without_the_engine(tmp_path: Path) -> None:
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda-sim")

    def without(document: Any) -> None:
        document["objects"] = [o for o in document["objects"] if o["symbols"] != ["tm_sim_run_grid"]]

    with pytest.raises(ArchiveError, match="cannot be loaded\n  tm_sim_run_grid"):
        taskmap.load(changed(path, tmp_path / "c.taskmap", without))


def test_neither_compiler_nor_torch_is_needed(tmp_path: Path) -> None:
    """A process of its own, which finds no compiler, no store and no torch."""
    path = archived(mlp()[0], tmp_path / "m.taskmap", target="cuda-sim")
    code = (
        "import sys, numpy as np\n"
        "sys.modules.update(dict.fromkeys(['torch', 'onnx', 'cuda']))\n"
        f"import taskmap\nprint(taskmap.load({str(path)!r})(np.ones((2, 8), np.float32))[0].sum())\n"
    )
    environment = {**os.environ, "PATH": "", "TASKMAP_CACHE_DIR": str(tmp_path / "none"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert float(done.stdout) == pytest.approx(2)
    assert not (tmp_path / "none").exists()
