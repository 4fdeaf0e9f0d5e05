"""Certificates: proofs, or counterexamples, of how a task mapping accesses a memory.

There are four claims. That each task is done once follows from the algebra. The other three (bounds, shared-memory bank
conflicts, coalescing of global memory) are checked access by access, so they hold for every element, not for a sample.
An access is what a warp issues at once: its 32 workers, each at the same slot of its list.

Banks (CUDA C++ programming guide, "Shared memory"): 32 banks of 4-byte words; lanes that touch different words of one
bank wait for each other, lanes that touch the same word do not. Accesses of 8 or 16 bytes per lane are served for 16 or
8 lanes at a time. Global memory moves sectors of 32 bytes; the buffer is taken to start on a sector boundary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.assignment import Assignment
from taskmap.ir.algebra.digits import DigitMap
from taskmap.ir.algebra.inverse import flaw
from taskmap.ir.algebra.layout import Layout
from taskmap.ir.errors import MappingError
from taskmap.ir.util.wording import by, listed

WARP = 32
BANKS = 32
WORD = 4  # bytes of a bank's word
SECTOR = 32  # bytes
PHASE = BANKS * WORD  # bytes of shared memory served at a time
SCOPES = ("global", "shared", "register")


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement, its truth value, and the proof or counterexample."""

    name: str
    holds: bool
    text: str
    reason: str

    def __str__(self) -> str:
        return self.text if self.holds else f"{self.text} ({self.reason})"


@dataclass(frozen=True, slots=True, repr=False)
class Certificate:
    """The result of ``certify``. Prints as one line; explain() adds the proofs.

    conflict_degree: the largest number of words that one bank must serve for one access (1: no conflict); None outside
    shared memory. sectors, fewest_sectors: sectors moved by all accesses, and the fewest that could hold the same
    bytes; None outside global memory. accesses: number of accesses, each by one warp.
    """

    claims: tuple[Claim, ...]
    conflict_degree: int | None = None
    sectors: int | None = None
    fewest_sectors: int | None = None
    accesses: int | None = None

    @property
    def holds(self) -> bool:
        """True if every claim holds."""
        return all(claim.holds for claim in self.claims)

    def explain(self) -> str:
        """A line per claim, with its proof or counterexample."""
        return "\n".join(f"{'✓' if claim.holds else '✗'} {claim.text}: {claim.reason}" for claim in self.claims)

    def __str__(self) -> str:
        parts = list(map(str, self.claims))
        if self.accesses is not None:
            parts.append(f"{self.accesses} warp access{'es' * (self.accesses != 1)}")
        return " · ".join(parts)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class WorkerAccess:
    """One access of a warp: the workers that take part and the address of each, in elements."""

    warp: int
    slot: int
    lanes: tuple[tuple[int, int], ...]  # (worker, address)


def certify(mapping: Assignment, *, layout: Layout | None, scope: str, target: str, bytes: int) -> Certificate:
    """Certify that the mapping does each task once and, given a layout, how it accesses a buffer with that layout.

    scope: global, shared or register. target: banks and sectors are claimed for "cuda..." only. bytes: the size of an
    element, 1, 2, 4, 8 or 16. Raises MappingError for other values, and for more than a million accesses.
    """
    _check_arguments(scope, bytes)
    coverage = _coverage(mapping)
    if layout is None:
        return Certificate((coverage,))
    bounds = _bounds(mapping, layout)
    if not (bounds.holds and target.startswith("cuda") and scope != "register"):
        return Certificate((coverage, bounds))
    accesses = list(_accesses(mapping, layout))
    if scope == "shared":
        degree, banks = _banks(accesses, bytes)
        return Certificate((coverage, bounds, banks), conflict_degree=degree, accesses=len(accesses))
    sectors, fewest, coalescing = _sectors(accesses, bytes)
    return Certificate((coverage, bounds, coalescing), sectors=sectors, fewest_sectors=fewest, accesses=len(accesses))


def _check_arguments(scope: str, bytes: int) -> None:
    if scope not in SCOPES:
        raise MappingError(f"cannot certify accesses to the scope {scope!r}", why=f"it is one of {', '.join(SCOPES)}.")
    if bytes not in (1, 2, 4, 8, 16):
        raise MappingError(
            f"cannot certify accesses of {bytes} bytes", why="a lane accesses 1, 2, 4, 8 or 16 bytes at a time."
        )


def _coverage(mapping: Assignment) -> Claim:
    if mapping.is_partition:
        reason = (
            f"the digits of the {mapping.num_workers} workers and {mapping.num_slots} slots are those of the "
            f"{by(mapping.task_shape)} tasks' indices, each used once"
        )
        if not all(isinstance(part, DigitMap) for part in mapping.parts):
            reason = f"the table of each function in it lists every task once: {by(mapping.task_shape)} tasks"
        return Claim("coverage", True, "every task once", reason)
    return Claim("coverage", False, "not every task once", flaw(mapping))


def _bounds(mapping: Assignment, layout: Layout) -> Claim:
    """Every task is an element of the layout, and its address lies within the layout's span."""
    shape = mapping.task_shape
    if len(shape) != layout.rank:
        reason = f"tasks have {len(shape)} dimensions, the layout {layout.rank}"
        return Claim("bounds", False, "out of bounds", reason)
    _check_size(mapping)
    reached = [task for worker in range(mapping.num_workers) for task in mapping(worker)]
    outside = [
        task for task in reached if any(index >= extent for index, extent in zip(task, layout.shape, strict=True))
    ]
    if outside:
        reason = f"task {outside[0]} of {by(shape)} lies outside {layout}"
        return Claim("bounds", False, "out of bounds", reason)
    beyond = [task for task in reached if not 0 <= layout(*task) < layout.size]
    if beyond:
        reason = f"task {beyond[0]} has address {layout(*beyond[0])} of {layout.size}"
        return Claim("bounds", False, "out of bounds", reason)
    return Claim("bounds", True, "in bounds", f"all {len(reached)} addresses lie below {layout.size}")


def _check_size(mapping: Assignment) -> None:
    if mapping.num_workers * mapping.num_slots > radix.LARGEST:
        raise MappingError(
            f"{mapping} is too large to certify its accesses",
            why=f"they are checked one by one, and there are more than {radix.LARGEST}.",
            hint="Certify the tile that one block of threads works on.",
        )


def _accesses(mapping: Assignment, layout: Layout) -> Iterator[WorkerAccess]:
    for first in range(0, mapping.num_workers, WARP):
        workers = range(first, min(first + WARP, mapping.num_workers))
        lists = {worker: mapping(worker) for worker in workers}
        for slot in range(max(map(len, lists.values()))):
            lanes = tuple((worker, layout(*tasks[slot])) for worker, tasks in lists.items() if slot < len(tasks))
            yield WorkerAccess(first // WARP, slot, lanes)


def _banks(accesses: list[WorkerAccess], bytes: int) -> tuple[int, Claim]:
    """The largest number of words that one bank serves in one access, over all accesses."""
    degree, worst = 0, ""
    lanes_at_once = min(WARP, PHASE // bytes)
    for access in accesses:
        phases: dict[tuple[int, int], dict[int, int]] = defaultdict(
            dict
        )  # (phase, bank) -> word -> a worker that accesses it
        for worker, address in access.lanes:
            phase = worker % WARP // lanes_at_once
            for word in range(address * bytes // WORD, math.ceil((address + 1) * bytes / WORD)):
                phases[phase, word % BANKS].setdefault(word, worker)
        for (_, bank), words in phases.items():
            if len(words) > degree:
                degree = len(words)
                where = f"in warp {access.warp} at slot {access.slot}, bank {bank}"
                worst = f"{where} serves a different word to workers {listed(sorted(words.values()))}"
    reason = "no bank serves two words in any access" if degree <= 1 else worst
    return degree, Claim("banks", degree <= 1, f"{BANKS} banks, {degree}-way", reason)


def _sectors(accesses: list[WorkerAccess], bytes: int) -> tuple[int, int, Claim]:
    """Sectors moved, compared with the fewest that hold as many bytes, access by access."""
    moved = fewest = 0
    excess, worst = 0, ""
    for access in accesses:
        addresses = {address for _, address in access.lanes}
        touched = len({address * bytes // SECTOR for address in addresses})  # elements are aligned: each lies in one
        needed = math.ceil(len(addresses) * bytes / SECTOR)
        moved += touched
        fewest += needed
        if touched - needed > excess:
            excess = touched - needed
            worst = f"warp {access.warp} at slot {access.slot} moves {touched} sectors for the data of {needed}"
    if excess == 0:
        text = f"coalesced, {moved} sectors of {SECTOR} bytes"
        return moved, fewest, Claim("coalescing", True, text, "each access moves the fewest sectors that hold its data")
    return moved, fewest, Claim("coalescing", False, f"uncoalesced, {moved} sectors for {fewest}", worst)
