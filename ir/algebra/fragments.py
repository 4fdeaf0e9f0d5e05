"""The placement of a register buffer's tiles in the registers of the workers that hold it.

A buffer distributed by repeat(2, 2) * fragment consists of four tiles. Each lies in consecutive slots of every worker,
at the same positions in all of them, so one instruction works on any tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.util.wording import by

Coords = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """The placement of each tile: for every lane, the tile coordinates of its slots; and the slot, counted from the
    tile's first, that holds the tile's first element."""

    held: tuple[tuple[Coords, ...], ...]
    origin: int

    @property
    def count(self) -> int:
        """The number of slots of one lane."""
        return len(self.held[0])


@lru_cache(maxsize=512)
def fragment(owner: TaskMapping, shape: Coords, workers: int) -> Fragment | str:
    """The placement of tiles of ``shape``, each held by ``workers`` consecutive workers; or a reason for none."""
    if any(n % t for n, t in zip(owner.task_shape, shape, strict=True)):
        return f"{by(owner.task_shape)} elements are not whole tiles of {by(shape)}."
    if owner.num_workers % workers:
        return f"{owner} has {owner.num_workers} workers, not groups of {workers}."
    held: dict[int, tuple[Coords, ...]] = {}
    starts: dict[tuple[int, Coords], int] = {}
    for worker in range(owner.num_workers):
        tiles: dict[Coords, list[tuple[int, Coords]]] = {}
        for slot, task in enumerate(owner(worker)):
            tile = tuple(i // n for i, n in zip(task, shape, strict=True))
            tiles.setdefault(tile, []).append((slot, tuple(i % n for i, n in zip(task, shape, strict=True))))
        group, lane = divmod(worker, workers)
        for tile, slots in tiles.items():
            first = slots[0][0]
            if [s for s, _ in slots] != list(range(first, first + len(slots))):
                return (
                    f"worker {worker} holds parts of the tile {tile} in slots {[s for s, _ in slots]}, not neighbours."
                )
            mine = tuple(c for _, c in slots)
            if held.setdefault(lane, mine) != mine:
                return f"worker {worker} holds other elements of the tile {tile} than of other tiles."
            if starts.setdefault((group, tile), first) != first:
                return f"the tile {tile} begins in slot {first} of worker {worker}, elsewhere in other lanes."
    if len(held) < workers or len({len(mine) for mine in held.values()}) != 1:
        return f"not every one of {workers} lanes holds as much of a tile."
    zero = (0,) * len(shape)
    origin = next(mine.index(zero) for mine in held.values() if zero in mine)
    return Fragment(tuple(held[lane] for lane in range(workers)), origin)


def long_dims(shape: Coords) -> tuple[int, ...]:
    """The dimensions of a tile with more than one element."""
    return tuple(d for d, n in enumerate(shape) if n != 1)


def is_held_as(tile: Fragment, shape: Coords, owner: TaskMapping) -> bool:
    """True if a tile of ``shape`` is placed as ``owner`` says, ignoring dimensions of one element."""
    here, there = long_dims(shape), long_dims(owner.task_shape)
    if [shape[d] for d in here] != [owner.task_shape[d] for d in there] or len(tile.held) != owner.num_workers:
        return False
    return all(
        [tuple(c[d] for d in here) for c in mine] == [tuple(c[d] for d in there) for c in owner(lane)]
        for lane, mine in enumerate(tile.held)
    )


@dataclass(frozen=True, slots=True)
class Matrices:
    """The 8-row matrices in a tile: the tile coordinates of each one's first element, and the dimensions of the tile
    along which the rows of a matrix, and the elements of a row, are consecutive."""

    origins: tuple[Coords, ...]
    down: int
    along: int


@lru_cache(maxsize=512)
def matrices(tile: Fragment, owner: TaskMapping, count: int) -> Matrices | None:
    """The matrices in a tile for an instruction whose registers hold ``count`` of them, stacked, as ``owner`` says;
    None if the tile does not consist of such matrices."""
    if tile.count != owner.num_slots or len(tile.held) != owner.num_workers:
        return None
    placed: dict[Coords, Coords] = {}  # the coordinates in the stack of matrices -> in the tile
    for lane, mine in enumerate(tile.held):
        for there, here in zip(owner(lane), mine, strict=True):
            if placed.setdefault(there, here) != here:
                return None
    origins = tuple(placed[8 * i, 0] for i in range(count))
    down, along = _step(origins[0], placed[1, 0]), _step(origins[0], placed[0, 1])
    if down is None or along is None or down == along:
        return None
    for (row, column), here in placed.items():
        expected = list(origins[row // 8])
        expected[down] += row % 8
        expected[along] += column
        if tuple(expected) != here:
            return None
    return Matrices(origins, down, along)


def _step(a: Coords, b: Coords) -> int | None:
    """The dimension along which b is one element after a; None if there is no such dimension."""
    moved = [d for d, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    return moved[0] if len(moved) == 1 and b[moved[0]] == a[moved[0]] + 1 else None
