"""Archives for the simulated GPU: they contain kernels built for the host, and the engine that runs them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taskmap.archive.manifest import Manifest, PlanRecord
from taskmap.archive.place import Array, addresses_of
from taskmap.backend.image import load_image
from taskmap.backend.program.arrays import address_of
from taskmap.backend.program.executable import Executable
from taskmap.backend.sim.building import SimKernel, use_engine
from taskmap.backend.sim.launch import SimLauncher
from taskmap.backend.sim.unit import ENGINE_SYMBOL

_ALIGNMENT = 16
"""The address of every GPU tensor is a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class SimPlace:
    """The simulator: arrays are used in place, or copied if a GPU kernel could not load them there."""

    weights: int
    kernels: Mapping[str, SimKernel]
    workers: int
    profile: bool

    def executable(self, plan: PlanRecord) -> Executable:
        """The plan as launches."""
        launcher = SimLauncher(plan.program, self.kernels, self.workers)
        return Executable(plan.program, plan.memory, launcher, single=self.profile)

    def run(
        self, runs: Executable, io: Sequence[int], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
        constants: array[int],
    ) -> None:  # fmt: skip
        """Run the plan. Raises SimulationError, and IndexOutOfRangeError."""
        runs(addresses_of(io, [*map(_aligned, given), *made]), dims, constants)


def sim_place(manifest: Manifest, objects: Sequence[bytes], address: int, workers: int, profile: bool) -> SimPlace:
    """The simulator with the kernels in ``objects``; the weights are at ``address``. Raises OSError and AttributeError
    for objects that cannot be loaded."""
    contents = list(zip(manifest.objects, objects, strict=True))
    # The engine first: kernels link to it when they are loaded.
    engine = next((content for o, content in contents if ENGINE_SYMBOL in o.symbols), None)
    if engine is None:
        raise AttributeError(ENGINE_SYMBOL)
    use_engine(lambda: load_image(engine, visible=True).handle)
    kernels: dict[str, SimKernel] = {}
    for o, content in contents:
        symbols = [s for s in o.symbols if s != ENGINE_SYMBOL]
        if symbols:
            library = load_image(content)
            kernels |= {s: SimKernel(manifest.kernels[s], Path(o.entry), library.handle, False) for s in symbols}
    return SimPlace(address, kernels, workers, profile)


def _aligned(x: Array) -> Array:
    if address_of(x) % _ALIGNMENT == 0:
        return x
    memory = np.empty(x.nbytes + _ALIGNMENT, np.uint8)
    start = -address_of(memory) % _ALIGNMENT
    made = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made
