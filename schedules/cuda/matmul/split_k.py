"""Limits of split-k: several blocks share a sum, each adds part of the terms, and the last to arrive adds the parts
(``split_sum`` of the tree)."""

from __future__ import annotations

from math import prod

from taskmap.ir.construct import ceil_div, index, minimum, static_size
from taskmap.ir.nodes import Dim, Expr
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.problem_view import Gemm

LARGEST_WORKSPACE = 64 << 20
"""Bytes of partial sums beyond which split-k costs more than it saves."""


def tiles_of(p: Gemm, block: tuple[int, int]) -> int | None:
    """The number of tiles of a product; None if it is known only when the kernel runs."""
    m, n, *batch = (static_size(d) for d in (p.m, p.n, *p.batch))
    if m is None or n is None or None in batch:
        return None
    return -(-m // block[0]) * -(-n // block[1]) * prod(d or 0 for d in batch)


def partial_bytes(p: Gemm, block: tuple[int, int], split: int) -> int:
    """Memory for the partial sums of a product of known sizes."""
    return split * (tiles_of(p, block) or 0) * block[0] * block[1] * p.accumulate.bytes


def why_not_split(p: Gemm, block: tuple[int, int], depth: int, split: int) -> str | None:
    """The reason why ``split`` blocks cannot share each sum of a product in tiles of ``block``, ``depth`` terms at a
    time, or None if they can."""
    if split == 1:
        return None
    k = static_size(p.k)
    if k is None or tiles_of(p, block) is None:
        return "blocks can share sums only if all sizes are known"
    steps = -(-k // depth)
    if (split - 1) * -(-steps // split) >= steps:
        return f"{steps} k-tiles are not enough for {split} blocks"
    taken = partial_bytes(p, block, split)
    return f"the partial sums take {taken >> 20} MiB" if taken > LARGEST_WORKSPACE else None


def steps_of(steps: Dim, split: int, part: Expr, values: Inliner) -> tuple[Expr, Expr]:
    """Of ``steps`` k-tiles, the first one and the number of those that belong to part ``part`` of ``split``."""
    if split == 1:
        return index(0), index(steps)
    share = ceil_div(steps, split)
    first = values.simplifier(part * share)
    known = static_size(steps)
    even = known is not None and known % split == 0
    return first, index(share) if even else values.simplifier(minimum(index(share), index(steps) - first))
