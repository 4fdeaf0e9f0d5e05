"""Archives on an NVIDIA GPU: kernels are loaded and launched through the driver, without a compiler or PyTorch."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from taskmap.archive.gpus import find_gpu
from taskmap.archive.manifest import Manifest, PlanRecord
from taskmap.archive.place import Array
from taskmap.backend.cuda.launch import CudaLauncher, DeviceKernel, LaunchContext
from taskmap.backend.cuda.memory import STREAM, DeviceBlock, DeviceMemory
from taskmap.backend.program.arrays import address_of
from taskmap.backend.program.executable import Executable


@dataclass(frozen=True, slots=True, eq=False)
class CudaPlace:
    """A GPU with an archive's kernels and weights. Every call copies its inputs to the GPU and its results back."""

    weights: int
    kernels: Mapping[str, DeviceKernel]
    memory: DeviceMemory
    profile: bool
    keeps: object = field(repr=False)
    _lock: Lock = field(init=False, default_factory=Lock, repr=False)

    def executable(self, plan: PlanRecord) -> Executable:
        """The plan as launches."""
        around = LaunchContext(self.memory.allocate, lambda: STREAM)
        launcher = CudaLauncher(plan.program, self.kernels, self.memory.driver, self.memory.device, around)
        return Executable(plan.program, plan.memory, launcher, single=self.profile)

    def run(
        self, runs: Executable, io: Sequence[int], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
        constants: array[int],
    ) -> None:  # fmt: skip
        """Run the plan and wait for it. Raises DeviceError, and IndexOutOfRangeError for this call."""
        memory = self.memory
        with self._lock:  # calls are serial on the GPU anyway, and each sees its own errors
            memory.driver.ensure_context(memory.device)
            blocks = [memory.allocate(x.nbytes) for x in (*given, *made)]
            for x, (address, _) in zip(given, blocks, strict=False):
                memory.write(address, address_of(x), x.nbytes)
            runs(array("q", [blocks[slot][0] for slot in io]), dims, constants)
            memory.driver.synchronize(STREAM, "the kernels of an archive")
            runs.check()
            for x, (address, _) in zip(made, blocks[len(given) :], strict=True):
                memory.read(address_of(x), address, x.nbytes)


def cuda_place(
    manifest: Manifest, objects: Sequence[bytes], weights: memoryview, address: int, profile: bool
) -> CudaPlace:
    """The GPU with the kernels in ``objects`` and the weights at host address ``address``. Raises as find_gpu, and
    DeviceError."""
    driver, device = find_gpu(manifest.machine.gpu)
    driver.ensure_context(device)
    memory = DeviceMemory(driver, device)
    start, block = memory.allocate(len(weights))
    memory.write(start, address, len(weights))
    compiled = f"taskmap {manifest.taskmap} for {manifest.machine.isa}"
    kernels = {
        symbol: DeviceKernel(manifest.kernels[symbol], driver.load(image, symbol, compiled))
        for o, image in zip(manifest.objects, objects, strict=True)
        for symbol in o.symbols
    }
    assert isinstance(block, DeviceBlock)
    return CudaPlace(start, kernels, memory, profile, block)
