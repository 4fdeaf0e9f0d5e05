"""Division of a tile among the threads of a block, neighbours side by side."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial


@dataclass(frozen=True, slots=True)
class TilePartition:
    """Rows × chunks of a tile among ``workers`` threads: a chunk is the unit that a thread takes at once."""

    rows: int
    chunks: int
    workers: int
    repeats: tuple[int, int]
    spread: tuple[int, int]

    @property
    def mapping(self) -> TaskMapping:
        """Over (row, chunk)."""
        return repeat(*self.repeats) * spatial(*self.spread)

    def owner(self, lanes: int) -> TaskMapping:
        """Ownership over (row, chunk, element of the chunk)."""
        return repeat(*self.repeats, 1) * spatial(*self.spread, 1) * repeat(1, 1, lanes)


def partition_tile(rows: int, chunks: int, threads: int) -> TilePartition | str:
    """``rows`` × ``chunks`` among ``threads`` threads, or fewer, in equal parts; or the reason why that is
    impossible."""
    across = min(chunks, threads)
    if chunks % across:
        return f"{threads} threads do not divide the {chunks} chunks of a row"
    down = 1
    while 2 * down * across <= threads and rows % (2 * down) == 0:
        down *= 2
    return TilePartition(rows, chunks, down * across, (rows // down, chunks // across), (down, across))
