"""Memory planning: the place of every temporary buffer in one arena.

Buffers with disjoint lifetimes share space. A symbolic size is split into a constant coefficient and a symbolic factor
(batch × 4096 bytes); the buffers of one factor form a region that is planned with the coefficients alone and scaled by
the factor at run time, so sharing is as good as for known sizes. Regions follow each other in the arena.

Placement is greedy: buffers in falling order of size, each into the tightest gap between those placed before that are
alive with it. Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, "greedy by
size". Falling order of size × lifetime is tried as well, and the smaller arena wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.backend.program.structure import BufferKind, Program, size_text
from taskmap.ir.construct import product
from taskmap.ir.expressions import Binary, Const, Dim, Expr

ALIGNMENT = 64
"""Bytes: every buffer starts at a multiple, which is a cache line and the widest vector."""


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A demand: ``bytes`` bytes from step ``first`` to step ``last``, both included."""

    bytes: int
    first: int
    last: int

    def overlaps(self, other: MemoryBlock) -> bool:
        """True if the two are alive at the same step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """A part of the arena: ``units`` × ``factor`` bytes, where units is a multiple of ALIGNMENT."""

    factor: Dim
    units: int

    @property
    def bytes(self) -> Dim:
        """Size of the region."""
        return product([self.units, self.factor])


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``places`` maps an arena buffer to its region and to its offset there, in units of the region's factor."""

    regions: tuple[MemoryRegion, ...]
    places: dict[int, tuple[int, int]]
    demand: dict[int, tuple[int, int]]

    @property
    def bytes(self) -> Dim:
        """Size of the arena."""
        total: Dim = 0
        for region in self.regions:
            total = total + region.bytes
        return total

    def __str__(self) -> str:
        lines = [f"arena: {size_text(self.bytes)} bytes"]
        for buffer, (region, offset) in self.places.items():
            first, last = self.demand[buffer]
            factor = self.regions[region].factor
            lines.append(f"b{buffer}: region {region} offset {offset} × {size_text(factor)}, steps {first} to {last}")
        return "\n".join(lines)


def plan_memory(program: Program) -> MemoryPlan:
    """A place for every arena buffer that a step uses; buffers used by one step never overlap."""
    lifetimes = _lifetimes(program)
    groups: dict[tuple[Expr, ...], list[tuple[int, MemoryBlock]]] = {}
    for buffer, (first, last) in lifetimes.items():
        units, factors = _split(program.buffers[buffer].bytes)
        block = MemoryBlock(_align(max(units, 1)), first, last)
        groups.setdefault(factors, []).append((buffer, block))
    regions: list[MemoryRegion] = []
    places: dict[int, tuple[int, int]] = {}
    for factors, members in sorted(groups.items(), key=lambda item: repr(item[0])):
        offsets, total = place([block for _, block in members])
        for (buffer, _), offset in zip(members, offsets, strict=True):
            places[buffer] = (len(regions), offset)
        regions.append(MemoryRegion(product(factors), total))
    return MemoryPlan(tuple(regions), places, lifetimes)


def place(blocks: Sequence[MemoryBlock]) -> tuple[list[int], int]:
    """An offset for every block, multiples of ALIGNMENT if the sizes are, and the total; blocks alive together do not
    overlap."""
    by_size = _greedy(blocks, lambda b: b.bytes)
    if len(blocks) > 1000:  # quadratic: the second try does not justify its time
        return by_size
    by_area = _greedy(blocks, lambda b: b.bytes * (b.last - b.first + 1))
    return min(by_size, by_area, key=lambda result: result[1])


def _greedy(blocks: Sequence[MemoryBlock], weight: Callable[[MemoryBlock], int]) -> tuple[list[int], int]:
    placed: list[tuple[int, MemoryBlock]] = []  # in rising order of offset
    offsets = [0] * len(blocks)
    total = 0
    for i in sorted(range(len(blocks)), key=lambda i: (-weight(blocks[i]), blocks[i].first, i)):
        block = blocks[i]
        best, best_gap, end = -1, -1, 0
        for offset, other in placed:
            if not block.overlaps(other):
                continue
            gap = offset - end
            if gap >= block.bytes and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, offset + other.bytes)
        offsets[i] = end if best < 0 else best
        total = max(total, offsets[i] + block.bytes)
        at = next((k for k, (offset, _) in enumerate(placed) if offset > offsets[i]), len(placed))
        placed.insert(at, (offsets[i], block))
    return offsets, total


def _lifetimes(program: Program) -> dict[int, tuple[int, int]]:
    """First and last step that use each arena buffer. A buffer of no step gets no place."""
    spans: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(program.steps):
        for buffer in step.buffers:
            if program.buffers[buffer].kind is BufferKind.ARENA:
                spans[buffer] = (spans.get(buffer, (position, position))[0], position)
    return spans


def _split(size: Dim) -> tuple[int, tuple[Expr, ...]]:
    """``size`` as a constant coefficient and its other factors, in an order of their own."""
    if not isinstance(size, Expr):
        return size, ()
    if isinstance(size, Const):
        return int(size.value), ()
    if isinstance(size, Binary) and size.op == "mul":
        (a, left), (b, right) = _split(size.a), _split(size.b)
        return a * b, tuple(sorted((*left, *right), key=repr))
    return 1, (size,)


def _align(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
