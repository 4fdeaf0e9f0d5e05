"""The device that runs an archive's kernels, and its memory: the differences between targets."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from taskmap.archive.machine import running_on
from taskmap.archive.manifest import PlanRecord
from taskmap.backend.program.cpu_launcher import CpuLauncher
from taskmap.backend.program.executable import Executable
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.sequence import SequenceExecutable

Array = NDArray[Any]
Runs = Executable | SequenceExecutable
"""A plan that can be run."""


class Place(Protocol):
    """A device with an archive's kernels and weights. ``weights``: the address at which kernels read the weights."""

    @property
    def weights(self) -> int: ...

    def executable(self, plan: PlanRecord) -> Runs:
        """A plan, ready to run; ValueError if it is not the plan that the archive's native code runs."""
        ...

    def run(
        self, runs: Runs, io: Sequence[int], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
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

    def executable(self, plan: PlanRecord) -> Runs:
        """The plan with its launch sequence. Raises ValueError if the launch sequence belongs to another plan."""
        if self.profile:
            return SequenceExecutable(plan.program, plan.memory, CpuLauncher(plan.program, self.addresses), single=True)
        wanted = [source.symbol for source in launch_sources(plan.program, plan.memory)]
        if self.same_version and tuple(wanted) != plan.launch:
            raise ValueError(
                "a plan differs from the code that runs it: another build of taskmap wrote it, or it was changed."
            )
        # The executable looks up the functions by the names that compiling them now would give.
        functions = {name: self.addresses[there] for name, there in zip(wanted, plan.launch, strict=True)}
        return Executable(plan.program, plan.memory, {**self.addresses, **functions})

    def run(
        self, runs: Runs, io: Sequence[int], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
        constants: array[int],
    ) -> None:  # fmt: skip
        """Run the plan on ``threads`` threads."""
        with running_on(self.threads):
            runs(addresses_of(io, [*given, *made]), dims, constants)


def addresses_of(io: Sequence[int], arrays: Sequence[Array]) -> array[int]:
    """A table of the addresses of arrays, by their slots."""
    return array("q", [address_of(arrays[slot]) for slot in io])


def address_of(x: Array) -> int:
    """The address of an array's first element."""
    address: int = x.__array_interface__["data"][0]
    return address
