"""The work of attention between its two products, for every template: scores, their online softmax, the result.

Four neighbouring lanes own every row of scores and of sums, so softmax needs only shuffles.

For 16-bit types, weights are powers of two: 2^(c s - m), where c is the scale of scores times log2(e), of one fused
multiplication and addition. The running maximum m is that of the rounded c s, so weights of different tiles are exactly
consistent; weights too small to be normal numbers are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, call, cast, const, constant_value, eq, index, maximum, minimum, select
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, LoopKind, Scope, Var
from taskmap.ir.types import f32, i32
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.attention.problem_view import AttentionTask
from taskmap.schedules.cuda.attention.score import Score, score_of
from taskmap.schedules.cuda.support.launch import WARP
from taskmap.schedules.cuda.support.vectors import fills

_LOG2_E = 1 / math.log(2)


class Tiles(Protocol):
    """The tile of a block in a configuration: ``rows`` queries of each of ``warps`` warps."""

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        ...

    @property
    def rows(self) -> int:
        """Queries of a warp."""
        ...

    @property
    def keys(self) -> int:
        """Keys of a tile."""
        ...

    @property
    def queries(self) -> int:
        """Queries of a block."""
        ...

    @property
    def row_owner(self) -> TaskMapping:
        """Ownership of per-query values."""
        ...

    def owner(self, columns: int) -> TaskMapping:
        """Ownership of the elements of queries × ``columns``."""
        ...


@dataclass(slots=True)
class Softmax:
    """The running maximum ``top`` and sum ``total`` of a block's queries, from ``first`` on. worker: a thread's number
    among those that multiply. outer: the position along batch and heads."""

    b: Builder
    t: AttentionTask
    c: Tiles
    worker: Expr
    first: Expr
    outer: tuple[Expr, Expr]
    top: Buffer = field(init=False)
    total: Buffer = field(init=False)
    score: Score = field(init=False)
    factor: Expr | None = field(init=False)

    def __post_init__(self) -> None:
        found = score_of(self.t.a)
        if self.t.q.expr.dtype == f32:
            self.score, self.factor = Score(self.t.a.score, 1.0, None), None
        else:
            self.score, self.factor = found, const(found.scale * _LOG2_E, f32)

    def begin(self) -> None:
        """Stores the initial state: no keys seen yet."""
        self.top, self.total = self.of_rows("top", -math.inf), self.of_rows("total", 0.0)

    def of_rows(self, name: str, start: float) -> Buffer:
        """Registers for a per-query value."""
        b, owner = self.b, self.c.row_owner
        held = b.allocate(name, f32, (self.c.queries,), Scope.REGISTER, owner=owner)
        with b.mapped(["i"], owner, self.worker) as (i,):
            b.store(held, (i,), start)
        return held

    def finish_scores(self, values: Inliner, scores: Buffer, key: Expr) -> None:
        """Turns products into scores, without their scale; minus infinity beyond the last key. Tiles without a masked
        key are left unchanged."""
        a, c, b = self.t.a, self.c, self.b
        last = key + (c.keys - 1)
        tile = {a.stage.axes[2]: self.t.seen(self.first, c.queries), a.key: (key, last)}
        untouched = self.score.unmasked(tile)
        if untouched is not None and not fills(a.keys, c.keys):
            untouched = untouched & (last < a.keys)
        known = None if untouched is None else constant_value(untouched)
        if untouched is None:
            self.mask(values, scores, key)
        elif known is None:
            with b.when(values.simplifier(~untouched)):
                self.mask(values.nested(), scores, key)
        elif not known:
            self.mask(values, scores, key)

    def mask(self, values: Inliner, scores: Buffer, key: Expr) -> None:
        """Applies the masks to each element."""
        a, c, b = self.t.a, self.c, self.b
        with b.mapped(["i", "j"], c.owner(c.keys), self.worker) as (i, j):
            values.bind(i, c.queries)
            values.bind(j, c.keys)
            inside = values.nested()
            row = inside.simplifier(minimum(self.first + i, index(self.t.rows) - 1))
            held = inside.simplifier(key + j)
            if not fills(a.keys, c.keys):
                held = inside.simplifier(minimum(held, index(a.keys) - 1))
            inside.reduced = {**inside.reduced, id(a.dot): scores[i, j]}
            axes = {**self.place(inside, row), a.key: held}
            value = cast(inside.expand(self.score.value, axes), f32)
            if not fills(a.keys, c.keys):
                value = select(inside.simplifier(key + j < a.keys), value, const(-math.inf, f32))
            b.store(scores, (i, j), value)

    def to_weights(self, scores: Buffer, store: Callable[[Expr, Expr, Expr], None]) -> Buffer:
        """Turns scores into weights relative to the running maximum, which ``store`` receives as (query, key, weight).
        Returns the factors by which earlier sums shrink."""
        c, b, top, total = self.c, self.b, self.top, self.total
        best = self.of_rows("best", -math.inf)
        with b.mapped(["i", "j"], c.owner(c.keys), self.worker) as (i, j):
            b.store(best, (i,), maximum(best[i], scores[i, j]))
        self.share_rows(best, lambda x, y: maximum(x, y))
        shrink = b.allocate("shrink", f32, (c.queries,), Scope.REGISTER, owner=c.row_owner)
        with b.mapped(["i"], c.row_owner, self.worker) as (i,):
            new = b.let("new", maximum(top[i], best[i] if self.factor is None else best[i] * self.factor))
            safe = b.let("safe", select(eq(new, const(-math.inf, f32)), const(0.0, f32), new))
            b.store(shrink, (i,), self.power(top[i] - safe))
            b.store(top, (i,), new)
            b.store(best, (i,), safe)
            b.store(total, (i,), total[i] * shrink[i])
        with b.mapped(["i", "j"], c.owner(c.keys), self.worker) as (i, j):
            weight = b.let("weight", self.weight(scores[i, j], best[i]))
            b.store(total, (i,), total[i] + weight)
            store(i, j, weight)
        return shrink

    def rescale(self, sums: Buffer, shrink: Buffer) -> None:
        """Rescales the sums so far to the new maximum."""
        b = self.b
        with b.mapped(["i", "d"], self.c.owner(self.t.width), self.worker) as (i, d):
            b.store(sums, (i, d), sums[i, d] * shrink[i])

    def power(self, x: Expr) -> Expr:
        """exp(x), or 2^x for 16-bit types."""
        return call("exp", x) if self.factor is None else Intrinsic(instruction_named("exp2_approx"), (x,), f32, 1)

    def weight(self, score: Expr, top: Expr) -> Expr:
        """The weight of a score, relative to the maximum."""
        return self.power(score - top if self.factor is None else call("fma", score, self.factor, -top))

    def share_rows(self, held: Buffer, combine: Callable[[Expr, Expr], Expr]) -> None:
        """Combines a per-query value over the four lanes that own its row."""
        b, shuffle = self.b, instruction_named("shuffle_xor")
        with b.mapped(["i"], self.c.row_owner, self.worker) as (i,):
            value = held[i]
            for distance in (1, 2):
                other = Intrinsic(shuffle, (index(WARP), value, const(distance, i32)), f32, 1)
                value = b.let("both", combine(value, b.let("other", other)))
            b.store(held, (i,), value)

    def place(self, values: Inliner, row: Expr) -> dict[Var, Expr]:
        """The position of a row along batch, heads and queries."""
        batch, head = self.outer
        found = self.t.place(head, row)
        return {self.t.a.stage.axes[0]: batch, **{axis: values.simplifier(e) for axis, e in found.items()}}

    def gather(self) -> None:
        """Reduces the sum of a row over the lanes that own it."""
        self.share_rows(self.total, lambda x, y: x + y)

    def finish(self, values: Inliner, sums: Buffer) -> None:
        """out = o / l, and the epilogue, for the queries that exist, once the sums are gathered."""
        a, c, b, total = self.t.a, self.c, self.b, self.total
        with b.mapped(["i"], c.row_owner, self.worker) as (i,):
            safe = select(eq(total[i], const(0.0, f32)), const(1.0, f32), total[i])
            b.store(total, (i,), const(1.0, f32) / safe)
        width = a.stage.shape[3]
        lanes = 2 if fills(width, 2) else 1
        pairs = spatial(c.warps, 1) * repeat(c.rows // 16, self.t.width // 8)
        pairs = pairs * repeat(2, 1) * spatial(8, 4) * repeat(1, 2 // lanes)
        out = Epilogue(self.t.task, a.stage, a.dot, b)
        with b.mapped(["i", "g"], pairs, self.worker) as (i, g):
            values.bind(i, c.queries)
            values.bind(g, self.t.width // lanes)
            test = as_expr(True)
            if not fills(self.t.rows, c.queries):
                test = test & values.simplifier(self.first + i < self.t.rows)
            if not fills(width, self.t.width):
                test = test & values.simplifier(g * lanes < width)
            with b.when(test), b.loop("v", lanes, LoopKind.VECTOR) as v:
                inside = values.nested()
                inside.bind(v, lanes)
                d = inside.simplifier(g * lanes + v)
                position = {**self.place(inside, self.first + i), a.stage.axes[3]: d}
                result = cast(sums[i, d] * total[i], a.stage.out.dtype)
                out.replace(inside.nested(), result, position)
