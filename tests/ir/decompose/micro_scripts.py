"""Micro-kernels in script, on which their use as leaves is tested."""
# mypy: ignore-errors
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# The reason: script's loops and tensors are not what a type checker takes them for.

from __future__ import annotations

from typing import Any

from taskmap.ir import repeat, spatial
from taskmap.ir.script.read import barrier, script, thread, unroll


@script
def outer(a: Any, b: Any, c: Any) -> None:
    """c += a @ b, by multiply-adds."""
    for i in unroll(c.shape[0]):
        for j in unroll(c.shape[1]):
            c[i, j] += a[i, 0] * b[0, j]


@script
def products(a: Any, b: Any, c: Any) -> None:
    """c += a @ b, of a in memory."""
    for k in range(a.shape[1]):
        for i in unroll(c.shape[0]):
            for j in unroll(c.shape[1]):
                c[i, j] += a[i, k] * b[k, j]


@script
def by_lanes(src: Any, dst: Any) -> None:
    """dst = src, a row for each lane."""
    for i, j in (spatial(32, 1) * repeat(1, 4)).on(thread % 32):
        dst[i, j] = src[i, j]


@script
def waiting(a: Any, b: Any, c: Any) -> None:
    """Meets the whole block."""
    barrier()
    c[0, 0] += a[0, 0] * b[0, 0]


@script
def spoiling(a: Any, b: Any, c: Any) -> None:
    """Writes an operand."""
    a[0, 0] = 0.0
    c[0, 0] += b[0, 0]


@script
def looping(a: Any, b: Any, c: Any) -> None:
    """Walks through registers in a loop."""
    for i in range(4):
        c[i, 0] += a[i, 0] * b[0, 0]


@script
def idle(a: Any, b: Any, c: Any) -> None:
    """Does nothing."""


@script
def outer_product(a: Any, b: Any, c: Any) -> None:
    """c += a @ b, for one column of a and one row of b."""
    for i in unroll(4):
        for j in unroll(4):
            c[i, j] += a[i, 0] * b[0, j]


@script
def too_wide(a: Any, b: Any, c: Any) -> None:
    """Writes a column beyond its tile."""
    for i in unroll(4):
        for j in unroll(5):
            c[i, j] += a[i, 0] * b[0, j]


@script
def rows(src: Any, dst: Any) -> None:
    """dst = src, a row for each of 16 threads; the others have none."""
    if thread < 16:
        for j in range(8):
            dst[thread, j] = src[thread, j]


@script
def all_rows(src: Any, dst: Any) -> None:
    """dst = src, all of it by all threads."""
    for i in range(16):
        for j in range(8):
            dst[i, j] = src[i, j] + thread * 0.0


@script
def forwards(src: Any, dst: Any) -> None:
    """dst = src, a row for each lane."""
    for i, j in spatial(32, 4).on(thread % 128):
        dst[i, j] = src[i, j]
