"""Clipped copies: elements beyond the end of global memory are read as 0, and not written.

A vector with all its elements inside is copied as a vector; at an edge its elements are tested one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from taskmap.ir import nodes as ir
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, const, index, minimum, select
from taskmap.ir.types import i32

Offsets = Callable[[ir.Expr], tuple[Sequence[ir.Expr], Sequence[ir.Expr]]]
"""The indices in the destination and in the source of a vector's element."""


def clipped_vector(b: Builder, s: ir.Move, lanes: int, at: Offsets, whole: Callable[[], None]) -> None:
    """A vector of ``lanes`` elements: ``whole`` copies it if it lies inside."""
    with b.when(_inside(s, at, index(lanes - 1))):
        whole()
    in_registers = ir.Scope.REGISTER in (s.dst.buffer.scope, s.src.buffer.scope)
    with b.otherwise(), b.loop("e", lanes, ir.LoopKind.UNROLLED if in_registers else ir.LoopKind.SERIAL) as e:
        _element(b, s, at, e, tested=lanes == 1)


def _element(b: Builder, s: ir.Move, at: Offsets, e: ir.Expr, *, tested: bool) -> None:
    """One element at an edge; ``tested``: it is known to lie outside."""
    to, _ = at(e)
    zero = const(0, s.dst.buffer.dtype)
    if tested:
        if not _ends(s.dst):
            b.store(s.dst.buffer, to, zero)
        return
    with b.when(_inside(s, at, e)):
        _, source = at(e)
        b.store(s.dst.buffer, to, s.src.buffer[tuple(source)])
    if not _ends(s.dst):
        with b.otherwise():
            b.store(s.dst.buffer, to, zero)


def _inside(s: ir.Move, at: Offsets, e: ir.Expr) -> ir.Expr:
    test = as_expr(True)
    for r, indices in zip((s.dst, s.src), at(e), strict=True):
        if _ends(r):
            for d, (i, size) in enumerate(zip(indices, r.buffer.shape, strict=True)):
                test = test if d in s.exact else test & (i < size)
    return test


def _ends(r: ir.Region) -> bool:
    return r.buffer.scope is ir.Scope.GLOBAL


def clipped_source(r: ir.Region, bytes: int, exact: Collection[int]) -> tuple[ir.Region, ir.Expr]:
    """The source of an asynchronous copy, with a valid address in any case, and the number of bytes to read: all or 0.
    A chunk is never partly inside, and never outside along the dimensions ``exact``."""
    source, test = valid(r, exact)
    return source, select(test, const(bytes, i32), const(0, i32))


def valid(r: ir.Region, exact: Collection[int]) -> tuple[ir.Region, ir.Expr]:
    """A chunk at a valid address in any case, and the test that it is the one that was meant."""
    test, start = as_expr(True), []
    for d, (i, size, extent) in enumerate(zip(r.start, r.buffer.shape, r.shape, strict=True)):
        test = test if d in exact else test & (i < size)
        start.append(i if d in exact else minimum(i, index(size) - extent))
    return ir.Region(r.buffer, tuple(start), r.shape), test
