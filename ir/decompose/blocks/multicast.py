"""Parts that several blocks of a cluster use: each block fetches a share of the rows, and TMA sends it to all of them.

    .tile(256, 128).to(CLUSTER).tile(128, 128).to(BLOCK)     two blocks, with rows of their own, and the same columns
    .move("b", SHARED).prefetch(4).multicast(CLUSTER)        each fetches half of the rows of b, for both

(CUTLASS, "TMA multicast"; PTX ISA, cp.async.bulk.tensor with .multicast::cluster.)
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from taskmap.ir import nodes as ir
from taskmap.ir.construct import binary, cast, const, index, static_size
from taskmap.ir.decompose.blocks.grid import position
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.steps import TileStep, Tree
from taskmap.ir.types import i32
from taskmap.ir.workers import BLOCKS


@dataclass(frozen=True, slots=True)
class ClusterPartition:
    """The blocks of a cluster that use the same part of an operand. count: their number; number: of the running block
    among them. blocks: bit r is 1 for the block of rank r."""

    count: int
    number: ir.Expr
    blocks: ir.Expr


def blocks_of_cluster(tree: Tree) -> TileStep | None:
    """The step that gives tiles to the blocks of a cluster."""
    steps = (s for s in tree.steps if isinstance(s, TileStep))
    return next((s for s in steps if s.level is Level.BLOCK and s.before.level is Level.CLUSTER), None)


def counts_of(step: TileStep) -> dict[str, int]:
    """The blocks of a cluster along each axis, the slowest first."""
    counts = {c.axis: (c.stride or static_size(step.before.extent(c.axis)) or 0) // c.width for c in step.cuts}
    return {a: counts[a] for a in step.order}


def sharing(step: TileStep, axes: tuple[str, ...]) -> int:
    """The number of blocks of a cluster that use the same part of an operand with these axes."""
    return math.prod(n for a, n in counts_of(step).items() if a not in axes)


def partition_of(step: TileStep, axes: tuple[str, ...]) -> ClusterPartition:
    """The blocks that share the part of the running block."""
    counts = counts_of(step)
    order = list(counts)
    weights = {a: math.prod([counts[x] for x in order[d + 1 :]]) for d, a in enumerate(order)}
    others = [a for a in order if a not in axes]
    at = position(BLOCKS[0] % math.prod(counts.values()), dict(counts), order)
    number, first = index(0), index(0)
    for a in order:
        number = number * counts[a] + at[a] if a in others else number
        first = first if a in others else first + at[a] * weights[a]
    ranks = (sum(i * weights[a] for a, i in zip(others, where, strict=True))
             for where in itertools.product(*(range(counts[a]) for a in others)))  # fmt: skip
    blocks = binary("shl", const(sum(1 << r for r in ranks), i32), cast(first, i32))
    return ClusterPartition(sharing(step, axes), number, blocks)
