"""The attention template: softmax(scores) v without ever holding all scores, in blocks of queries and keys.

    parallel over (batch, head, block of queries):
        for each block of keys:
            s = scores of the block            microkernel on a transposed copy of the keys
            m' = max(m, rows of s);  p = exp(s - m');  rescale what was summed by exp(m - m')
            l = l + sum of p;  o = o + p v     microkernel
        out = o / l

What a score is (scale, mask, causality) comes from the operator's definition; the template only supplies the product
q k. Methods: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al., "FlashAttention"
(2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import (
    call,
    cast,
    ceil_div,
    const,
    constant_dim,
    eq,
    index,
    lane_reduce,
    load,
    maximum,
    minimum,
    ramp,
    select,
)
from taskmap.ir.nodes import Binary, Buffer, Cast, Dim, Expr, Kernel, Load, LoopKind, Reduce, Scope, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.access import require_count
from taskmap.schedules.cpu.epilogue import Epilogue
from taskmap.schedules.cpu.loops import column_groups, parallel_grid
from taskmap.schedules.cpu.microkernel import choose_tile, emit_tile
from taskmap.schedules.cpu.window import positions
from taskmap.schedules.values import Values

_QUERIES = 64
_KEYS = 256
_STATE_BYTES = 512 << 10
"""What a block's keys and scores may take of the stack."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The pieces of an attention stage: its score for (query, key) in terms of the product ``dot``, and its tensors."""

    stage: Stage
    score: Expr
    key: Var
    dot: Reduce
    q: Load
    k: Load
    v: Load
    causal: bool

    @property
    def queries(self) -> Dim:
        """Number of queries."""
        return self.stage.shape[2]

    @property
    def keys(self) -> Dim:
        """Number of keys."""
        return self.v.buffer.shape[2]


def find_attention(task: Task) -> Attention | None:
    """The attention that anchors a task, with static head sizes, or None."""
    stages = [task.stages[task.anchor]] if task.anchor is not None else task.stages
    stage = next((s for s in stages if "causal" in dict(s.attrs) and len(s.axes) == 4), None)
    if stage is None:
        return None
    folds = [e for e in walk_exprs(stage.body) if isinstance(e, Reduce)]
    top = next((e for e in folds if e.op == "max"), None)
    if top is None:
        return None
    dot = next((e for e in walk_exprs(top.body) if isinstance(e, Reduce) and e.op == "sum"), None)
    v = next((e for e in walk_exprs(stage.body) if isinstance(e, Load) and e.indices[-1] is stage.axes[3]), None)
    if dot is None or v is None or not isinstance(dot.body, Binary):
        return None
    q, k = _bare(dot.body.a), _bare(dot.body.b)
    if not isinstance(q, Load) or not isinstance(k, Load) or constant_dim(stage.shape[3]) is None:
        return None
    if constant_dim(dot.axes[0][1]) is None:
        return None
    return Attention(stage, top.body, top.axes[0][0], dot, q, k, v, bool(dict(stage.attrs)["causal"]))


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e


def schedule_attention(task: Task, target: Target) -> Kernel | None:
    """The template's kernel, or None for a task that is not anchored by attention or not in f32, f16 or bf16."""
    found = find_attention(task)
    if found is None or found.dot.dtype != f32:
        return None
    require_count(task, task.outputs, found.stage.shape)
    return _Template(task, found, target).kernel()


@dataclass(slots=True)
class _Template:
    task: Task
    a: Attention
    target: Target
    b: Builder = field(default_factory=Builder)

    @property
    def lanes(self) -> int:
        return self.target.lanes(4)

    def blocks(self) -> tuple[int, int, int]:
        """(queries, keys, columns of keys) of a block; columns are keys rounded up to whole vectors."""
        queries, keys = constant_dim(self.a.queries), constant_dim(self.a.keys)
        depth = constant_dim(self.a.dot.axes[0][1]) or 0
        longest = max(self.lanes, min(_KEYS, _STATE_BYTES // (4 * (depth + _QUERIES)) // self.lanes * self.lanes))
        rows = 32 if queries is None else -(-queries // -(-queries // _QUERIES))
        if keys is None:
            return rows, min(128, longest), min(128, longest)
        even = -(-keys // -(-keys // longest))
        return rows, even, -(-even // self.lanes) * self.lanes

    def kernel(self) -> Kernel:
        a, b = self.a, self.b
        rows, keys, columns = self.blocks()
        values = Values(self.task, b)
        batch, heads, queries, width = a.stage.shape
        extents = [batch, heads, ceil_div(queries, rows)]
        with parallel_grid(b, ["batch", "head", "block"], extents, values, True, 1 << 62) as (n, h, block):
            inside = values.nested()
            first = inside.simplifier(block * rows)
            state = self.allocate(rows, columns, constant_dim(width) or 0)
            blocks = ceil_div(a.keys, keys)
            if a.causal:
                reach = inside.simplifier(minimum(index(blocks), (first + (rows + keys - 1)) // keys))
                blocks = b.let("blocks", reach)
            with b.loop("keys", index(blocks)) as kb:
                inside.bind(kb, ceil_div(a.keys, keys))
                step = _Block(self, state, n, h, first, inside.simplifier(kb * keys), rows, keys, columns)
                step.emit(inside.nested())
            self.finish(inside, state, n, h, first, rows)
        note = f"cpu.attention(queries={rows}, keys={keys})"
        buffers = (*self.task.inputs, *self.task.outputs)
        return Kernel(self.task.name, buffers, self.task.outputs, self.task.dims, b.body(), note=note)

    def allocate(self, rows: int, columns: int, width: int) -> _State:
        b = self.b
        depth = constant_dim(self.a.dot.axes[0][1]) or 0
        return _State(
            b.allocate("keys_t", f32, (depth, columns)),
            b.allocate("scores", f32, (rows, columns)),
            b.allocate("sums", f32, (rows, width), init=0.0),
            b.allocate("top", f32, (rows,), init=-math.inf),
            b.allocate("total", f32, (rows,), init=0.0),
        )

    def finish(self, values: Values, state: _State, n: Expr, h: Expr, first: Expr, rows: int) -> None:
        """out = o / l, and whatever follows, for the queries that exist."""
        a, b = self.a, self.b
        with b.loop("query", rows) as i:
            values.bind(i, rows)
            inside = values.nested()
            with b.when(inside.simplifier(first + i < a.queries)):
                total = b.let("l", state.total[i])
                scale = b.let("scale", const(1.0, f32) / select(eq(total, const(0.0, f32)), const(1.0, f32), total))
                column = 0
                for vectors, width in column_groups(state.sums.shape[1], self.lanes):  # type: ignore[arg-type]
                    with b.loop("vector", vectors) as v, b.loop("lane", width, _kind(width)) as lane:
                        inside.bind(v, vectors)
                        inside.bind(lane, width)
                        d = v * width + lane + column
                        position = dict(zip(a.stage.axes, (n, h, first + i, d), strict=True))
                        result = cast(state.sums[i, d] * scale, a.stage.out.dtype)
                        Epilogue(self.task, a.stage, a.dot, b).replace(inside.nested(), result, position)
                    column += vectors * width


def _kind(width: int) -> LoopKind:
    return LoopKind.VECTOR if width > 1 else LoopKind.SERIAL


@dataclass(frozen=True, slots=True)
class _State:
    """A core's own memory: keys transposed, scores, and per query the sum of values, the maximum, the sum of
    weights.
    """

    keys: Buffer
    scores: Buffer
    sums: Buffer
    top: Buffer
    total: Buffer


@dataclass(frozen=True, slots=True)
class _Block:
    """One block of queries against one block of keys."""

    t: _Template
    s: _State
    n: Expr
    h: Expr
    first: Expr
    key: Expr
    rows: int
    keys: int
    columns: int

    def emit(self, values: Values) -> None:
        self.transpose_keys(values.nested())
        self.multiply_keys(values.nested())
        self.soften(values.nested())
        self.multiply_values(values.nested())

    def head(self, operand: Load, position: Sequence[Expr], values: Values) -> Expr:
        """An element of q, k or v: ``position`` replaces its last two indices, batch and head stay as defined."""
        known = dict(zip(self.t.a.stage.axes[:2], (self.n, self.h), strict=True))
        outer = [values.expand(i, known) for i in operand.indices[:2]]
        return cast(values.at(operand.buffer, (*outer, *position)), f32)

    def transpose_keys(self, values: Values) -> None:
        b, a = self.t.b, self.t.a
        depth, columns = self.s.keys.shape
        with b.loop("key", index(columns)) as j:
            values.bind(j, columns)
            row = values.simplifier(minimum(self.key + j, index(a.keys) - 1))
            start = 0
            for vectors, width in column_groups(depth, self.t.lanes):  # type: ignore[arg-type]
                with b.loop("vector", vectors) as v, b.loop("lane", width, _kind(width)) as lane:
                    values.bind(v, vectors)
                    values.bind(lane, width)
                    d = v * width + lane + start
                    b.store(self.s.keys, (d, j), self.head(a.k, (row, d), values.nested()))
                start += vectors * width

    def multiply_keys(self, values: Values) -> None:
        """scores = score(q kᵀ), minus infinity beyond the last key."""
        t, b = self.t, self.t.b
        tile = choose_tile(self.rows, self.columns, t.target, t.lanes)
        for top, tiles, height in positions(self.rows, tile.rows):
            with b.loop("tile", tiles) as i0:
                values.bind(i0, tiles)
                self.score_tiles(values.nested(), values.simplifier(i0 * height + top), height, tile.vectors * t.lanes)

    def score_tiles(self, values: Values, row0: Expr, height: int, width: int) -> None:
        """Scores of ``height`` queries from ``row0`` on."""
        t, b, a = self.t, self.t.b, self.t.a
        depth = constant_dim(self.s.keys.shape[0]) or 0
        for begin, many, groups in _panels(self.columns, width, t.lanes):
            with b.loop("panel", many) as p:
                inside = values.nested()
                inside.bind(p, many)
                columns = sum(v * w for v, w in groups)
                out = b.allocate("tile", f32, (height, columns))
                j0 = p * width + begin

                def left(at: Sequence[Expr], i: Expr, local: Values) -> Expr:
                    query = local.simplifier(minimum(self.first + row0 + i, index(a.queries) - 1))
                    return self.head(a.q, (query, at[0]), local)

                def right(at: Sequence[Expr], j: Expr, local: Values, j0: Expr = j0) -> Expr:
                    return self.s.keys[at[0], j0 + j]

                emit_tile(b, inside, height, groups, [depth], left, right, out, f32)
                self.score(inside, out, row0, j0, groups)

    def score(self, values: Values, out: Buffer, row0: Expr, j0: Expr, groups: list[tuple[int, int]]) -> None:
        b, a = self.t.b, self.t.a
        with b.loop("row", index(out.shape[0])) as i:
            values.bind(i, out.shape[0])
            query = values.simplifier(minimum(self.first + row0 + i, index(a.queries) - 1))
            start = 0
            for vectors, width in groups:
                with b.loop("vector", vectors) as v, b.loop("lane", width, _kind(width)) as lane:
                    inside = values.nested()
                    inside.bind(v, vectors)
                    inside.bind(lane, width)
                    j = v * width + lane + start
                    key = self.key + j0 + j
                    held = inside.simplifier(minimum(key, index(a.keys) - 1))
                    inside.folded = {**inside.folded, id(a.dot): out[i, j]}
                    known = dict(zip(a.stage.axes[:3], (self.n, self.h, query), strict=True))
                    value = cast(inside.expand(a.score, {**known, a.key: held}), f32)
                    beyond = inside.simplifier(key < a.keys)
                    within = inside.simplifier((j0 + j) < self.keys)
                    b.store(self.s.scores, (row0 + i, j0 + j), select(beyond & within, value, const(-math.inf, f32)))
                start += vectors * width

    def soften(self, values: Values) -> None:
        """Scores become weights relative to the running maximum; sums so far are rescaled to it."""
        b, s, lanes = self.t.b, self.s, self.t.lanes
        minus = const(-math.inf, f32)
        with b.loop("query", self.rows) as i:
            values.bind(i, self.rows)
            best = b.allocate("best", f32, (lanes,), Scope.REGISTER)
            added = b.allocate("added", f32, (lanes,), Scope.REGISTER)
            with b.loop("lane", lanes, _kind(lanes)) as lane:
                values.bind(lane, lanes)
                b.store(best, lane, minus)
                b.store(added, lane, 0.0)
                with b.loop("vector", self.columns // lanes) as v:
                    b.store(best, lane, maximum(best[lane], s.scores[i, v * lanes + lane]))
            every = (ramp(0, 1, lanes),) if lanes > 1 else (index(0),)
            top = b.let("m", maximum(s.top[i], lane_reduce("max", load(best, every))))
            safe = b.let("safe", select(eq(top, minus), const(0.0, f32), top))
            shrink = b.let("shrink", call("exp", s.top[i] - safe))
            with b.loop("lane", lanes, _kind(lanes)) as lane, b.loop("vector", self.columns // lanes) as v:
                weight = b.let("p", call("exp", s.scores[i, v * lanes + lane] - safe))
                b.store(s.scores, (i, v * lanes + lane), weight)
                b.store(added, lane, added[lane] + weight)
            b.store(s.total, i, s.total[i] * shrink + lane_reduce("sum", load(added, every)))
            b.store(s.top, i, top)
            start = 0
            for vectors, width in column_groups(s.sums.shape[1], lanes):  # type: ignore[arg-type]
                with b.loop("vector", vectors) as v, b.loop("lane", width, _kind(width)) as lane:
                    d = v * width + lane + start
                    b.store(s.sums, (i, d), s.sums[i, d] * shrink)
                start += vectors * width

    def multiply_values(self, values: Values) -> None:
        """sums += weights v."""
        t, b, s = self.t, self.t.b, self.s
        size = constant_dim(s.sums.shape[1]) or 0
        tile = choose_tile(self.rows, size, t.target, t.lanes)
        for top, tiles, height in positions(self.rows, tile.rows):
            with b.loop("tile", tiles) as i0:
                values.bind(i0, tiles)
                self.value_tiles(values.nested(), values.simplifier(i0 * height + top), height, tile.vectors * t.lanes)

    def value_tiles(self, values: Values, row0: Expr, height: int, width: int) -> None:
        """The sums of ``height`` queries from ``row0`` on."""
        t, b, a, s = self.t, self.t.b, self.t.a, self.s
        size = constant_dim(s.sums.shape[1]) or 0
        for begin, many, groups in _panels(size, width, t.lanes):
            with b.loop("panel", many) as p:
                inside = values.nested()
                inside.bind(p, many)
                out = b.allocate("tile", f32, (height, sum(v * w for v, w in groups)))
                d0 = p * width + begin

                def left(at: Sequence[Expr], i: Expr, local: Values) -> Expr:
                    return s.scores[row0 + i, at[0]]

                def right(at: Sequence[Expr], j: Expr, local: Values, d0: Expr = d0) -> Expr:
                    row = local.simplifier(minimum(self.key + at[0], index(a.keys) - 1))
                    return self.head(a.v, (row, d0 + j), local)

                emit_tile(b, inside, height, groups, [self.keys], left, right, out, f32)
                start = 0
                with b.loop("row", height) as i:
                    for vectors, lanes in groups:
                        with b.loop("vector", vectors) as v, b.loop("lane", lanes, _kind(lanes)) as lane:
                            d = v * lanes + lane + start
                            b.store(s.sums, (row0 + i, d0 + d), s.sums[row0 + i, d0 + d] + out[i, d])
                        start += vectors * lanes


def _panels(columns: int, width: int, lanes: int) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """(first column, how many, vector groups): panels of ``width`` columns, then what is left in one."""
    whole, rest = divmod(columns, width)
    parts = [(0, whole, [(width // lanes, lanes)])] if whole else []
    return [*parts, (whole * width, 1, column_groups(rest, lanes))] if rest else parts
