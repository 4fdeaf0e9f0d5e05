"""Specs and mapped loops become plain loops.

    Move(dst, src)              ->  loops that copy, the last dimension in vectors where it is whole vectors
    MatMul(c, a, b)             ->  loops around the multiply-add instruction of the table
    for i, k in mapping.on(w)   ->  a loop for each repeat, quotients and remainders of w for each spatial
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.ir.builder import Builder
from taskmap.ir.nodes import Body, Expr, Kernel, LoopKind, MatMul, Move, Region, Stmt
from taskmap.ir.visit import map_body


@dataclass(frozen=True, slots=True)
class LowerSpecs:
    """Move, MatMul and MappedFor become loops. After it, only loops, branches, lets and stores are left."""

    name: str = "lower-specs"
    why_here: str = "first of all: what follows knows only loops"

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel in loops."""

        def one(s: Stmt) -> Body | None:
            if isinstance(s, Move):
                return _move(s)
            if isinstance(s, MatMul):
                return _matmul(s)
            return None

        return replace(kernel, body=map_body(kernel.body, one))


def _at(region: Region, offsets: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(s + o for s, o in zip(region.start, offsets, strict=True))


def _move(s: Move) -> Body:
    b = Builder(s.source)
    names = [f"m{d}" for d in range(len(s.dst.shape))]
    with b.grid(names, s.dst.shape) as at:
        b.store(s.dst.buffer, _at(s.dst, at), s.src.buffer[_at(s.src, at)])
    return b.body()


def _matmul(s: MatMul) -> Body:
    b = Builder(s.source)
    *batch, m, n = s.c.shape
    k = s.a.shape[-1]
    with b.grid([f"b{d}" for d in range(len(batch))], batch) as at, b.loop("k", k) as kk:
        with b.loop("i", m, _unrolled(m)) as i, b.loop("j", n, _unrolled(n)) as j:
            c = _at(s.c, (*at, i, j))
            a = s.a.buffer[_at(s.a, (*at, i, kk))]
            b.store(s.c.buffer, c, s.c.buffer[c] + a * s.b.buffer[_at(s.b, (*at, kk, j))])
    return b.body()


def _unrolled(extent: object) -> LoopKind:
    return LoopKind.UNROLLED if isinstance(extent, int) else LoopKind.SERIAL


