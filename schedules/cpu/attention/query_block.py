"""One block of queries of an attention: its tiles against a block of keys, as in ``template``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from taskmap.ir.builder import Builder
from taskmap.ir.construct import (
    call,
    cast,
    ceil_div,
    compare,
    const,
    eq,
    index,
    lane_reduce,
    load,
    maximum,
    minimum,
    ramp,
    select,
    static_size,
)
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Dim, Expr, Load, Scope, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.schedules.common.access import accesses
from taskmap.schedules.common.attention_match import Attention
from taskmap.schedules.common.convolution_geometry import positions
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column, lane_kind
from taskmap.schedules.cpu.matmul.microkernel import Tile, emit_tile

_LEAST = math.log(2.0**-126)
"""The logarithm of the least normal number."""


@dataclass(slots=True)
class QueryBlock:
    """``rows`` queries from ``first`` on, of head ``h`` of batch ``n``.

    It processes blocks of ``keys`` keys one after another; ``single``: there is only one, so a tile of queries is
    finished as soon as it has seen that block. A core's local buffers: the transposed keys in panels of a tile's width,
    [panel, element of a key, key of the panel], so that each panel is contiguous; the scores of one tile, and in their
    place its weights; and per query
    (of the block, or of the tile if single) the sum of values, the maximum score and the sum of weights.
    """

    task: Task
    a: Attention
    target: CpuTarget
    tile: Tile
    b: Builder
    n: Expr
    h: Expr
    first: Expr
    rows: int
    keys: int
    single: bool
    keys_t: Buffer = field(init=False)
    scores: Buffer = field(init=False)
    weights: Buffer = field(init=False)
    sums: Buffer = field(init=False)
    top: Buffer = field(init=False)
    total: Buffer = field(init=False)

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.target.lanes(4)

    @property
    def columns(self) -> int:
        """Keys of a block, rounded up to whole vectors."""
        return -(-self.keys // self.lanes) * self.lanes

    @property
    def width(self) -> int:
        """Keys of a panel."""
        return min(self.tile.vectors * self.lanes, self.columns)

    @property
    def height(self) -> int:
        """Queries of a tile."""
        return min(self.tile.rows, self.rows)

    def allocate(self) -> None:
        """Allocate the local buffers."""
        self.keys_t = self.b.allocate("keys_t", f32, (-(-self.columns // self.width), self.a.depth, self.width))
        self.allocate_sums()

    def allocate_sums(self) -> None:
        """Allocate the buffers of scores, and of what is known of each query so far."""
        b, a = self.b, self.a
        kept = self.height if self.single else self.rows
        carried = None if self.single else 0.0
        self.scores = self.weights = b.allocate("scores", f32, (self.height, self.columns))
        self.sums = b.allocate("sums", f32, (kept, a.width), init=carried)
        self.top = b.allocate("top", f32, (kept,), init=None if self.single else -math.inf)
        self.total = b.allocate("total", f32, (kept,), init=carried)

    def attend(self, values: Inliner, key: Expr) -> None:
        """Every tile of queries against the keys from ``key`` on."""
        self.transpose_keys(values.nested(), key)
        for top, tiles, height in positions(self.rows, self.height):
            with self.b.loop("tile", tiles) as i0:
                inside = values.nested()
                inside.bind(i0, tiles)
                row = inside.simplifier(i0 * height + top)
                step = self.tile_at(inside.simplifier(self.first + row), row, height, key)
                with self.b.when(inside.simplifier(step.query < self.a.queries)):
                    self.emit(inside, step)

    def tile_at(self, query: Expr, row: Expr, height: int, key: Expr) -> QueryTile:
        """A tile of ``height`` queries from ``query`` on, number ``row`` of the block, against keys from ``key`` on."""
        return QueryTile(self, query, row, height, key)

    def emit(self, values: Inliner, tile: QueryTile) -> None:
        """A tile of queries against the keys of a block that exist and that a causal mask allows."""
        keys = self.a.keys
        seen: Expr = index(self.keys)
        if static_size(keys) is None:
            seen = minimum(seen, index(keys) - tile.key)
        if self.a.causal:
            seen = minimum(seen, tile.query + tile.height - tile.key)
        if static_size(seen) is not None:
            tile.emit(values.nested(), None)
            return
        seen = self.b.let("seen", values.simplifier(seen))
        if not self.a.causal:
            tile.emit(values.nested(), seen)
            return
        with self.b.when(values.simplifier(seen > 0)):
            tile.emit(values.nested(), seen)

    def transpose_keys(self, values: Inliner, key: Expr) -> None:
        """Transposes keys into columns; columns beyond the last key repeat it. Lanes run along the contiguous axis in
        memory."""
        for begin, many, groups in panels_of(self.columns, self.width, self.lanes):
            with self.b.loop("panel", many) as p:
                inside = values.nested()
                inside.bind(p, many)
                panel = inside.simplifier(p + begin // self.width)
                self.transpose_panel(inside, key, panel, groups)

    def transpose_panel(self, values: Inliner, key: Expr, panel: Expr, groups: list[tuple[int, int]]) -> None:
        """Transposes the keys of one panel."""
        b, a = self.b, self.a
        first = key + panel * self.width
        if self.keys_are_columns():
            with b.loop("d", a.depth) as d:
                values.bind(d, a.depth)
                for j, inside in each_column(b, values, groups):
                    row = inside.simplifier(minimum(first + j, index(a.keys) - 1))
                    b.store(self.keys_t, (panel, d, j), self.head(a.k, (row, d), inside))
            return
        count = sum(vectors * width for vectors, width in groups)
        with b.loop("key", index(count)) as j:
            values.bind(j, count)
            row = values.simplifier(minimum(first + j, index(a.keys) - 1))
            for d, inside in each_column(b, values, column_groups(a.depth, self.lanes)):
                b.store(self.keys_t, (panel, d, j), self.head(a.k, (row, d), inside))

    def keys_are_columns(self) -> bool:
        """True if neighbouring keys, rather than a key's elements, are contiguous in memory."""
        return self.are_columns(self.a.k)

    def are_columns(self, operand: Load) -> bool:
        """True if neighbouring rows of k or v, rather than the elements of a row, are contiguous in memory."""
        axes = (*self.a.stage.axes[:2], Var("key"), Var("d"))
        length = self.a.depth if operand is self.a.k else self.a.width
        extents = (*self.a.stage.shape[:2], self.a.keys, length)
        here = replace(self, n=axes[0], h=axes[1])

        def read(values: Inliner) -> None:
            here.head(operand, axes[2:], values)

        walks = accesses(self.task, axes, extents, (), read)
        return any(w.step(2) == 1 for w in walks) and not any(w.step(3) == 1 for w in walks)

    def head(self, operand: Load, position: Sequence[Expr], values: Inliner) -> Expr:
        """An element of q, k or v in f32, as ``narrow`` reads it."""
        return cast(self.narrow(operand, position, values), f32)

    def narrow(self, operand: Load, position: Sequence[Expr], values: Inliner) -> Expr:
        """An element of q, k or v: ``position`` replaces its last two indices, batch and head stay as defined."""
        known = dict(zip(self.a.stage.axes[:2], (self.n, self.h), strict=True))
        outer = [values.expand(i, known) for i in operand.indices[:2]]
        return values.element(operand.buffer, (*outer, *position))

    def finish(self, values: Inliner, row: Expr, rows: int) -> None:
        """out = o / l, and the epilogue, for those of the ``rows`` queries from ``row`` on that exist."""
        a, b = self.a, self.b
        kept = index(0) if self.single else row
        with b.loop("query", rows) as i:
            values.bind(i, rows)
            inside = values.nested()
            query = inside.simplifier(self.first + row + i)
            with b.when(inside.simplifier(query < a.queries)):
                total = b.let("l", self.total[kept + i])
                scale = b.let("scale", const(1.0, f32) / select(eq(total, const(0.0, f32)), const(1.0, f32), total))
                for d, local in each_column(b, inside, column_groups(a.width, self.lanes)):
                    position = dict(zip(a.stage.axes, (self.n, self.h, query, d), strict=True))
                    result = cast(self.sums[kept + i, d] * scale, a.stage.out.dtype)
                    Epilogue(self.task, a.stage, a.dot, b).replace(local, result, position)


@dataclass(frozen=True, slots=True)
class QueryTile:
    """``height`` queries from ``query`` on, number ``row`` of the block, against the keys from ``key`` on."""

    block: QueryBlock
    query: Expr
    row: Expr
    height: int
    key: Expr

    @property
    def maxima(self) -> int:
        """Vectors of maxima of a row of scores, each of which waits for its own previous value."""
        return 1

    @property
    def kept(self) -> Expr:
        """The index of the tile's first query in the per-query buffers."""
        return index(0) if self.block.single else self.row

    def emit(self, values: Inliner, seen: Expr | None) -> None:
        """All work of a tile on a block of keys; ``seen``: the number of keys that any of its queries sees."""
        columns = self.multiply_keys(values.nested(), seen)
        self.to_weights(values.nested(), columns)
        self.multiply_values(values.nested(), seen)
        if self.block.single:
            self.block.finish(values.nested(), self.row, self.height)

    def rows(self, values: Inliner) -> Dim:
        """The queries of the tile that get weights: all, also those beyond the last."""
        return self.height

    def multiply_keys(self, values: Inliner, seen: Expr | None) -> Dim:
        """scores = score(q kᵀ), minus infinity beyond the last key. Returns the number of columns computed."""
        t = self.block
        columns, width = t.columns, t.width
        if seen is None:
            for begin, many, groups in panels_of(columns, width, t.lanes):
                with t.b.loop("panel", many) as p:
                    values.bind(p, many)
                    self.panel(values.nested(), values.simplifier(p * width + begin), groups)
            return columns
        whole = columns // width
        reached = t.b.let("reached", values.simplifier(minimum(ceil_div(seen, width), whole)))
        values.bind_value(reached, whole)
        with t.b.loop("panel", reached) as p:
            values.bind(p, whole)
            self.panel(values.nested(), values.simplifier(p * width), [(width // t.lanes, t.lanes)])
        rest = columns - whole * width
        if rest:
            with t.b.when(values.simplifier(seen > whole * width)):
                self.panel(values.nested(), index(whole * width), column_groups(rest, t.lanes))
        return t.b.let("columns", values.simplifier(minimum(ceil_div(seen, width) * width, columns)))

    def panel(self, values: Inliner, column: Expr, groups: list[tuple[int, int]]) -> None:
        """Scores of the keys from ``column`` of the block on."""
        t, a = self.block, self.block.a
        out = t.b.allocate("tile", f32, (self.height, sum(v * w for v, w in groups)))

        def left(at: Sequence[Expr], i: Expr, local: Inliner) -> Expr:
            query = local.simplifier(minimum(self.query + i, index(a.queries) - 1))
            return t.head(a.q, (query, at[0]), local)

        number = values.simplifier(column // t.width)

        def right(at: Sequence[Expr], j: Expr, local: Inliner) -> Expr:
            return t.keys_t[number, at[0], j]

        emit_tile(t.b, values, self.height, groups, [a.depth], left, right, out, f32)
        self.score(values, out, column, groups)

    def score(self, values: Inliner, out: Buffer, column: Expr, groups: list[tuple[int, int]]) -> None:
        """Applies the operator's definition of a score to the products in ``out``."""
        t, b, a = self.block, self.block.b, self.block.a
        with b.loop("row", self.height) as i:
            values.bind(i, self.height)
            query = values.simplifier(minimum(self.query + i, index(a.queries) - 1))
            for j, inside in each_column(b, values, groups):
                key = self.key + column + j
                held = inside.simplifier(minimum(key, index(a.keys) - 1))
                inside.reduced = {**inside.reduced, id(a.dot): out[i, j]}
                known = dict(zip(a.stage.axes[:3], (t.n, t.h, query), strict=True))
                value = cast(inside.expand(a.score, {**known, a.key: held}), f32)
                exists = inside.simplifier((column + j) < t.keys)
                if (whole := static_size(a.keys)) is None or whole % t.keys:
                    exists = inside.simplifier(key < a.keys) & exists
                b.store(t.scores, (i, column + j), select(exists, value, const(-math.inf, f32)))

    def to_weights(self, values: Inliner, columns: Dim) -> None:
        """Turns scores into weights relative to the maximum, in the type of their buffer. A running maximum first
        rescales the sums to the new one."""
        t, b, lanes = self.block, self.block.b, self.block.lanes
        minus = const(-math.inf, f32)
        vectors = values.simplifier.dim(index(columns) // lanes)
        with b.loop("query", self.rows(values)) as i:
            values.bind(i, self.height)
            kept = self.kept + i
            best = b.allocate("best", f32, (self.maxima * lanes,), Scope.REGISTER)
            added = b.allocate("added", f32, (lanes,), Scope.REGISTER)
            with b.loop("lane", lanes, lane_kind(lanes)) as lane:
                values.bind(lane, lanes)
                for number in range(self.maxima):
                    b.store(best, lane + number * lanes, minus)
                b.store(added, lane, 0.0)
                self.find_maxima(values.nested(), i, vectors, best, lane)
            every = (ramp(0, 1, lanes),) if lanes > 1 else (index(0),)
            highest = load(best, every)
            for number in range(1, self.maxima):
                highest = maximum(highest, load(best, (ramp(number * lanes, 1, lanes),)))
            here = lane_reduce("max", highest)
            top = b.let("m", here if t.single else maximum(t.top[kept], here))
            safe = b.let("safe", select(eq(top, minus), const(0.0, f32), top))
            with b.loop("lane", lanes, lane_kind(lanes)) as lane, b.loop("vector", index(vectors)) as v:
                values.bind(v, t.columns // lanes)
                weight = b.let("p", weight_of(t.scores[i, v * lanes + lane] - safe))
                b.store(t.weights, (i, v * lanes + lane), cast(weight, t.weights.dtype))
                b.store(added, lane, added[lane] + weight)
            sum_here = lane_reduce("sum", load(added, every))
            if t.single:
                b.store(t.total, kept, sum_here)
            else:
                shrink = b.let("shrink", weight_of(t.top[kept] - safe))
                b.store(t.total, kept, t.total[kept] * shrink + sum_here)
                b.store(t.top, kept, top)
                self.rescale(values, kept, shrink)

    def find_maxima(self, values: Inliner, i: Expr, vectors: Dim, best: Buffer, lane: Expr) -> None:
        """Maxima of a row of scores: of every so many-th vector each."""
        t, b, lanes = self.block, self.block.b, self.block.lanes

        def update(vector: Expr, number: int) -> None:
            place = lane + number * lanes
            b.store(best, place, maximum(best[place], t.scores[i, vector * lanes + lane]))

        steps = values.simplifier(index(vectors) // self.maxima)
        with b.loop("vector", steps) as v:
            values.bind(v, t.columns // lanes)
            for number in range(self.maxima):
                update(v * self.maxima + number, number)
        with b.loop("vector", values.simplifier(index(vectors) - steps * self.maxima)) as v:
            update(steps * self.maxima + v, 0)

    def rescale(self, values: Inliner, kept: Expr, shrink: Expr) -> None:
        """Rescales a query's sums to its new maximum."""
        t, b = self.block, self.block.b
        for d, _ in each_column(b, values, column_groups(t.a.width, t.lanes)):
            b.store(t.sums, (kept, d), t.sums[kept, d] * shrink)

    def multiply_values(self, values: Inliner, seen: Expr | None) -> None:
        """sums += weights v."""
        t, b, a = self.block, self.block.b, self.block.a
        width = t.tile.vectors * t.lanes
        terms: Dim = t.keys if seen is None else values.simplifier.dim(minimum(seen, t.keys))
        for begin, many, groups in panels_of(a.width, width, t.lanes):
            with b.loop("panel", many) as p:
                inside = values.nested()
                inside.bind(p, many)
                out = b.allocate("tile", f32, (self.height, sum(v * w for v, w in groups)))
                d0 = p * width + begin

                def left(at: Sequence[Expr], i: Expr, local: Inliner) -> Expr:
                    return t.scores[i, at[0]]

                def right(at: Sequence[Expr], j: Expr, local: Inliner, d0: Expr = d0) -> Expr:
                    row = local.simplifier(minimum(self.key + at[0], index(a.keys) - 1))
                    return t.head(a.v, (row, d0 + j), local)

                emit_tile(b, inside, self.height, groups, [terms], left, right, out, f32)
                with b.loop("row", self.height) as i:
                    for d, _ in each_column(b, inside, groups):
                        place = (self.kept + i, d0 + d)
                        b.store(t.sums, place, out[i, d] if t.single else t.sums[place] + out[i, d])


def weight_of(below: Expr) -> Expr:
    """exp(``below``), and 0 instead of a subnormal: each instruction that reads or makes one takes microcode, some 150
    cycles. Masks of -100, as in windows that are shifted, would give one for every masked key. PyTorch's fused
    attention does the same."""
    return call("exp", select(compare("lt", below, const(_LEAST, f32)), const(-math.inf, f32), below))


def panels_of(columns: int, width: int, lanes: int) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """(first column, columns, vector groups): panels of ``width`` columns, then the remaining columns in one panel."""
    whole, rest = divmod(columns, width)
    parts = [(0, whole, [(width // lanes, lanes)])] if whole else []
    return [*parts, (whole * width, 1, column_groups(rest, lanes))] if rest else parts
