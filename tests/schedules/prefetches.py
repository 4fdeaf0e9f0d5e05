"""The lines of memory that a scheduled kernel prefetches, counted without running it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast as typed

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import constant_value, index, static_size
from taskmap.ir.isa.amx import PREFETCH
from taskmap.ir.nodes import Body, Expr, For, If, Invoke, Kernel, Let, Var
from taskmap.ir.visit import substitute, walk_stmts


def has_prefetches(kernel: Kernel) -> bool:
    """True if the kernel prefetches."""
    return any(isinstance(s, Invoke) and s.instruction is PREFETCH for s in walk_stmts(kernel.body))


def prefetched(body: Body, at: dict[Var, Expr]) -> Iterator[int]:
    """The elements whose lines ``body`` prefetches, in order, counted from the first of their buffer; ``at``: values of
    variables."""

    def value(e: Expr) -> int:
        return int(typed(int, constant_value(Simplifier()(substitute(e, at)))))

    if not any(isinstance(s, Invoke) and s.instruction is PREFETCH for s in walk_stmts(body)):
        return
    at = dict(at)
    for s in body:
        if isinstance(s, For):
            for i in range(value(s.extent)):
                yield from prefetched(s.body, {**at, s.var: index(i)})
        elif isinstance(s, If):
            yield from prefetched(s.then if value(s.cond) else s.orelse, at)
        elif isinstance(s, Let):
            known = constant_value(Simplifier()(substitute(s.value, at)))
            at |= {} if known is None else {s.var: index(int(known))}
        elif isinstance(s, Invoke) and s.instruction is PREFETCH:
            (line,) = s.regions
            flat = 0
            for start, n in zip(line.start, line.buffer.shape, strict=True):
                flat = flat * (static_size(n) or 0) + value(start)
            yield flat
