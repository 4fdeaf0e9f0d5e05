"""Where an archive's kernels run, and the memory that they work on: what differs from target to target."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from taskmap.archive.machine import running_on
from taskmap.archive.manifest import ArchivedPlan, Source
from taskmap.backend.cpu.launch import CpuLauncher
from taskmap.backend.program.executable import Executable
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.sequence import SequenceExecutable

Array = NDArray[Any]
Runs = Executable | SequenceExecutable
"""A plan that can be run."""


class Place(Protocol):
    """A device with an archive's kernels and weights. ``weights``: the address at which kernels find the weights."""

    @property
    def weights(self) -> int: ...

    def executable(self, plan: ArchivedPlan) -> Runs:
        """A plan, ready to be run; ValueError where it is not the one that the archive's native code runs."""

    def run(
        self, runs: Runs, io: Sequence[Source], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
        constants: array[int],
    ) -> None:  # fmt: skip
        """Run a plan on arrays of the host: ``io`` says which stand behind its table; results are in ``made`` then."""


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """This machine's CPU: arrays are used where they are. ``addresses``: of kernels and of functions that run plans.
    ``same_version``: whether this version of taskmap wrote the archive."""

    weights: int
    addresses: Mapping[str, int]
    threads: int | None
    profile: bool
    same_version: bool

    def executable(self, plan: ArchivedPlan) -> Runs:
        """The plan with its launch sequence. Raises ValueError where this is that of another plan."""
        if self.profile:
            return SequenceExecutable(plan.program, plan.memory, CpuLauncher(plan.program, self.addresses), single=True)
        wanted = [source.symbol for source in launch_sources(plan.program, plan.memory)]
        if self.same_version and tuple(wanted) != plan.launch:
            raise ValueError(
                "a plan and the code that runs it differ: another build of taskmap wrote it, or it was changed."
            )
        # The executable asks for the functions by the names that they would have if it were compiled now.
        functions = {name: self.addresses[there] for name, there in zip(wanted, plan.launch, strict=True)}
        return Executable(plan.program, plan.memory, {**self.addresses, **functions})

    def run(
        self, runs: Runs, io: Sequence[Source], given: Sequence[Array], made: Sequence[Array], dims: Sequence[int],
        constants: array[int],
    ) -> None:  # fmt: skip
        """Run the plan on ``threads`` threads."""
        with running_on(self.threads):
            runs(addresses_of(io, given, made), dims, constants)


def addresses_of(io: Sequence[Source], given: Sequence[Array], made: Sequence[Array]) -> array[int]:
    """A table of the addresses of arrays."""
    behind = {"input": given, "made": made}
    return array("q", [address_of(behind[s.kind][s.index]) for s in io])


def address_of(x: Array) -> int:
    """Where an array's elements begin."""
    address: int = x.__array_interface__["data"][0]
    return address
