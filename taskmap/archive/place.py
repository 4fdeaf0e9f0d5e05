"""The device that runs an archive's kernels, and its memory: the differences between targets."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from taskmap.archive.manifest import PlanRecord
from taskmap.backend.cpu.openmp_threads import openmp_threads
from taskmap.backend.program.arrays import address_of
from taskmap.backend.program.executable import Executable
from taskmap.backend.program.host_launch import HostLauncher
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.sequence import CompiledSequence

Array = NDArray[Any]
Weights = dict[int, Array]
"""The bytes of weights, by their numbers."""


class Place(Protocol):
    """A device with an archive's kernels and weights. ``weights``: the address at which kernels read the weights."""

    @property
    def weights(self) -> int: ...

    def executable(self, plan: PlanRecord) -> Executable:
        """A plan, ready to run; ValueError if it is not the plan that the archive's native code runs."""
        ...

    def run(
        self, runs: Executable, io: Sequence[int], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
        constants: array[int],
    ) -> None:  # fmt: skip
        """Run a plan on host arrays: ``io`` lists the slots of its table; the results are then in ``made``."""


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """This machine's CPU: arrays are used in place. ``addresses``: of kernels and of functions that run plans.
    ``same_version``: this version of taskmap wrote the archive."""

    weights: int
    addresses: Mapping[str, int]
    threads: int | None
    profile: bool
    same_version: bool

    def executable(self, plan: PlanRecord) -> Executable:
        """The plan with its launch sequence. Raises ValueError if the launch sequence belongs to another plan."""
        program, memory = plan.program, plan.memory
        launcher = HostLauncher(program, self.addresses)
        if self.profile:
            return Executable(program, memory, launcher, single=True)
        if self.same_version and tuple(source.symbol for source in launch_sources(program, memory)) != plan.launch:
            raise ValueError(
                "a plan differs from the code that runs it: another build of taskmap wrote it, or it was changed."
            )
        functions = [self.addresses[symbol] for symbol in plan.launch]
        return Executable(program, memory, launcher, CompiledSequence(program, memory, self.addresses, functions))

    def run(
        self, runs: Executable, io: Sequence[int], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
        constants: array[int],
    ) -> None:  # fmt: skip
        """Run the plan on ``threads`` threads."""
        with openmp_threads(self.threads):
            runs(addresses_of(io, [*given, *made]), dims, constants)


def addresses_of(io: Sequence[int], arrays: Sequence[Array]) -> array[int]:
    """A table of the addresses of arrays, by their slots."""
    return array("q", [address_of(arrays[slot]) for slot in io])
