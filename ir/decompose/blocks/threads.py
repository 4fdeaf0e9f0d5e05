"""Threads of the whole grid: each takes one tile, and a block is so many neighbours of them.

tile(1, 4).to(THREAD).group(256)     thread t of block b: tile b * 256 + t, numbered row by row, if there is one
.done().vectorize(4)                 its elements, four neighbours at a time where all of them exist
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from taskmap.ir import nodes as ir
from taskmap.ir.builder import Builder
from taskmap.ir.construct import product, static_size
from taskmap.ir.decompose.blocks.grid import position
from taskmap.ir.decompose.steps import TileStep
from taskmap.ir.workers import BLOCKS, THREAD


@contextmanager
def tiles_of_grid(b: Builder, step: TileStep, counts: Mapping[str, ir.Dim]) -> Iterator[dict[str, ir.Expr]]:
    """The position of the running thread's tile along the axes of ``counts``; threads beyond the last tile rest."""
    threads, tiles = step.threads_of_grid, product(list(counts.values()))
    size = static_size(tiles)
    number = b.let("unit", THREAD if size is not None and size <= threads else BLOCKS[0] * threads + THREAD)
    with b.when(True if size is not None and size % threads == 0 else number < tiles):
        yield position(number, counts, step.order)
