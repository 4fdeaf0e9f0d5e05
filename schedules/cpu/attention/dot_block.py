"""A block of queries whose products run on dot products of neighbours: pairs of bf16, sums and scores in f32.

    keys in panels of a tile's width     [panel, pair of elements, key, element]
    values likewise                      [panel, pair of keys, element, key]

Each vector of a panel is one operand of the instruction; a pair of a query, or of weights, is broadcast. Zeros fill the
last pair of an odd head size and of an odd number of keys, in both operands, so nothing beside an edge enters a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.construct import ceil_div, const, index, minimum, static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Dim, Expr
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import f32
from taskmap.schedules.common.attention_match import Attention
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.attention.config import AttentionConfig, default
from taskmap.schedules.cpu.attention.cost import Lengths, cycles
from taskmap.schedules.cpu.attention.packed_block import PackedQueryBlock, PackedQueryTile
from taskmap.schedules.cpu.attention.query_block import QueryTile, panels_of
from taskmap.schedules.cpu.matmul.column_copies import is_moved
from taskmap.schedules.cpu.matmul.dot_tile import DotProduct, dot_product, emit_dot_tile
from taskmap.schedules.cpu.matmul.group_copies import copy_groups
from taskmap.schedules.cpu.matmul.summed_loops import Element

_MAXIMA = 4
"""Vectors of maxima; with one, 12 heads of 128 queries and 512 keys take 7 % longer."""


@dataclass(frozen=True, slots=True)
class DotAttention:
    """The dot product that computes both products of an attention, and the configuration for it."""

    product: DotProduct
    config: AttentionConfig


def attention_dots(a: Attention, target: CpuTarget) -> DotAttention | None:
    """The dot products for an attention on ``target``; None if its operands and its result are not of one type that
    these multiply, or if the cost model expects multiply-adds of f32 to be faster, as for one query whose elements are
    packed one by one."""
    types = {a.q.buffer.dtype, a.k.buffer.dtype, a.v.buffer.dtype, a.stage.out.dtype}
    if len(types) > 1 or a.dot.dtype != f32:
        return None
    found = dot_product(a.q.buffer.dtype, a.k.buffer.dtype, target)
    if found is None:
        return None
    lengths, config = Lengths.of(a), default(a, target, found.group)
    if cycles(config, lengths, target, found.group) >= cycles(default(a, target), lengths, target):
        return None
    return DotAttention(found, config)


@dataclass(slots=True, kw_only=True)
class DotQueryBlock(PackedQueryBlock):
    """A block of queries on dot products. Its local buffers hold keys and values in the groups of ``product``, the
    queries of one tile, and their scores and weights."""

    product: DotProduct

    @property
    def group(self) -> int:
        """Neighbours that the instruction multiplies."""
        return self.product.group

    @property
    def value_width(self) -> int:
        """Elements of a value in a panel: whole vectors, about as many in each panel."""
        vectors = -(-self.a.width // self.lanes)
        return -(-vectors // -(-vectors // self.tile.vectors)) * self.lanes

    @property
    def has_edges(self) -> bool:
        """True if a block of keys may be one with fewer keys than the others."""
        keys = static_size(self.a.keys)
        return keys is None or keys % self.keys != 0

    def allocate(self) -> None:
        """Allocate the local buffers, and fill what packing leaves open with zeros."""
        b, a, size, narrow = self.b, self.a, self.group, self.product.type_of_b
        kept = self.height if self.single else self.rows
        carried = None if self.single else 0.0
        depth, panels = -(-a.depth // size), -(-a.width // self.value_width)
        self.keys_t = b.allocate("keys_t", narrow, (-(-self.columns // self.width), depth, self.width, size))
        self.values_packed = b.allocate(
            "values_packed", narrow, (panels, -(-self.columns // size), self.value_width, size)
        )
        self.queries_held = b.allocate("queries", narrow, (self.height, depth * size))
        if a.depth % size:
            b.fill(self.queries_held, const(0, narrow))
        self.scores = b.allocate("scores", f32, (self.height, self.columns))
        self.weights = b.allocate("weights", narrow, (self.height, self.columns))
        self.sums = b.allocate("sums", f32, (kept, a.width), init=carried)
        self.top = b.allocate("top", f32, (kept,), init=None if self.single else -math.inf)
        self.total = b.allocate("total", f32, (kept,), init=carried)

    def tile_at(self, query: Expr, row: Expr, height: int, key: Expr) -> QueryTile:
        """A tile of ``height`` queries from ``query`` on, number ``row`` of the block, against keys from ``key`` on."""
        return DotQueryTile(self, query, row, height, key)

    def transpose_keys(self, values: Inliner, key: Expr) -> None:
        """Packs the keys and the values of a block."""
        here: Dim = self.keys
        if self.has_edges:
            here = self.b.let("here", values.simplifier(minimum(index(self.a.keys) - key, self.keys)))
            values.bind_value(here, self.keys)
        reach = here if static_size(self.a.keys) is None else self.keys
        for begin, many, groups in panels_of(self.keys, self.width, self.lanes):
            used = values.simplifier(minimum(ceil_div(index(reach) - begin, self.width), many))
            with self.b.loop("panel", used) as p:
                inside = values.nested()
                inside.bind(p, many)
                self.pack_keys(inside, key, inside.simplifier(p + begin // self.width), groups)
        for begin, many, groups in panels_of(self.a.width, self.value_width, self.lanes):
            with self.b.loop("panel", many) as p:
                inside = values.nested()
                inside.bind(p, many)
                self.pack_values(inside, (key, here), inside.simplifier(p + begin // self.value_width), groups)

    def pack_keys(self, values: Inliner, key: Expr, panel: Expr, groups: Sequence[tuple[int, int]]) -> None:
        """Packs a panel of keys: those beyond the last key of all repeat it, those beyond the block are zeros."""
        a, first = self.a, key + panel * self.width

        def element(at: Sequence[Expr], column: Expr, inside: Inliner) -> Expr:
            row: Expr = first + column
            if self.has_edges:
                row = minimum(row, index(a.keys) - 1)
            return self.narrow(a.k, (inside.simplifier(row), at[0]), inside)

        by_terms = not self.are_columns(a.k)
        in_place = not by_terms or (not self.has_edges and is_moved(self.task, a.k))
        right = element if in_place else self.copied_rows(values, element, groups)
        self.pack(values, right, groups, (self.keys_t, panel), (a.depth // self.group, a.depth), by_terms=by_terms)

    def copied_rows(self, values: Inliner, element: Element, groups: Sequence[tuple[int, int]]) -> Element:
        """Copies the keys of a panel as they are: rows of memory at equal distances."""
        b, a = self.b, self.a
        count = sum(vectors * lanes for vectors, lanes in groups)
        rows = b.allocate("rows", self.product.type_of_b, (count, a.depth))
        with b.loop("key", count) as j:
            values.bind(j, count)
            for d, inside in each_column(b, values.nested(), column_groups(a.depth, self.target.lanes(2))):
                b.store(rows, (j, d), element((d,), j, inside))
        return lambda at, column, inside: b.let("k", rows[column, at[0]])

    def pack_values(
        self, values: Inliner, keys: tuple[Expr, Dim], panel: Expr, groups: Sequence[tuple[int, int]]
    ) -> None:
        """Packs a panel of the values of a block: of so many keys from the first of ``keys`` on, and zeros."""
        a, (key, here) = self.a, keys
        first = panel * self.value_width

        def element(at: Sequence[Expr], column: Expr, inside: Inliner) -> Expr:
            return self.narrow(a.v, (inside.simplifier(key + at[0]), inside.simplifier(first + column)), inside)

        by_terms, place = self.are_columns(a.v) and is_moved(self.task, a.v), (self.values_packed, panel)
        if static_size(here) is not None:
            self.pack(values, element, groups, place, (self.keys // self.group, self.keys), by_terms=by_terms)
            return
        whole = self.b.let("whole", values.simplifier(index(here) // self.group))
        values.bind_value(whole, self.keys // self.group)
        self.clear_groups(values.nested(), place, (whole, here), self.padded(groups))
        self.pack(values.nested(), element, groups, place, (whole, self.keys), by_terms=by_terms)
        for number in range(self.group - 1):
            with self.b.when(index(here) - whole * self.group > number):
                for d, inside in each_column(self.b, values.nested(), groups):
                    value = element((whole * self.group + number,), d, inside)
                    self.b.store(self.values_packed, (panel, whole, d, index(number)), value)

    def pack(
        self,
        values: Inliner,
        right: Element,
        groups: Sequence[tuple[int, int]],
        into: tuple[Buffer, Expr],
        terms: tuple[Dim, int],
        *,
        by_terms: bool,
    ) -> None:
        """Copies columns in groups to a panel of a buffer. terms: the whole groups, and the most terms."""
        (buffer, panel), (whole, most), size = into, terms, self.group
        rest = most % size if static_size(whole) is not None else 0
        columns, counts = (self.padded(groups), groups), (0, whole, rest, size)
        place = (buffer, (panel,))
        copy_groups(self.b, values, right, columns, counts, -(-most // size), buffer.dtype, by_terms, place)

    def padded(self, groups: Sequence[tuple[int, int]]) -> int:
        """The columns of ``groups``, and zeros up to whole vectors."""
        return -(-sum(count * lanes for count, lanes in groups) // self.lanes) * self.lanes

    def clear_groups(self, values: Inliner, into: tuple[Buffer, Expr], groups: tuple[Expr, Dim], width: int) -> None:
        """Zeros in the groups of a panel of values that products read, behind the whole groups of a block: groups are
        the number of these, and the number of keys."""
        (buffer, panel), (first, here), size, most = into, groups, self.group, -(-self.keys // self.group)
        end = ceil_div(index(here), size) if static_size(self.a.keys) is None else index(most)
        with self.b.loop("group", values.simplifier(end - first)) as g:
            values.bind(g, most)
            for lane, _ in each_column(self.b, values, column_groups(width * size, size * self.lanes)):
                self.b.store(buffer, (panel, first + g, lane // size, lane % size), const(0, buffer.dtype))


@dataclass(frozen=True, slots=True)
class DotQueryTile(PackedQueryTile):
    """A tile of queries whose products run on dot products."""

    block: DotQueryBlock

    @property
    def maxima(self) -> int:
        """Vectors of maxima of a row of scores: the wait of a single one would show beside such short products."""
        return min(_MAXIMA, self.block.columns // self.block.lanes)

    def panel(self, values: Inliner, column: Expr, groups: list[tuple[int, int]]) -> None:
        """Scores of the keys from ``column`` of the block on."""
        t = self.block
        number = values.simplifier(column // t.width)
        out = self.multiply(values, t.queries_held, (t.keys_t, number), groups, t.queries_held.shape[1])
        self.score(values, out, column, groups)

    def multiply_weights(self, values: Inliner, columns: Dim, seen: Expr | None) -> None:
        """sums += weights v."""
        t, b = self.block, self.block.b
        terms: Dim = t.keys if seen is None else values.simplifier.dim(minimum(seen, t.keys))
        for begin, many, groups in panels_of(t.a.width, t.value_width, t.lanes):
            with b.loop("panel", many) as p:
                inside = values.nested()
                inside.bind(p, many)
                number = inside.simplifier(p + begin // t.value_width)
                whole = [(t.padded(groups) // t.lanes, t.lanes)]
                out = self.multiply(inside, t.weights, (t.values_packed, number), whole, terms)
                with b.loop("row", self.height) as i:
                    for d, _ in each_column(b, inside, groups):
                        place = (self.kept + i, number * t.value_width + d)
                        b.store(t.sums, place, out[i, d] if t.single else t.sums[place] + out[i, d])

    def multiply(
        self,
        values: Inliner,
        left: Buffer,
        packed: tuple[Buffer, Expr],
        groups: Sequence[tuple[int, int]],
        terms: Dim,
    ) -> Buffer:
        """Rows of ``left`` · a panel of a packed buffer, summed over so many terms."""
        t, (buffer, panel) = self.block, packed
        ((vectors, lanes),) = groups
        out = t.b.allocate("tile", f32, (self.height, vectors * lanes))

        def element(at: Sequence[Expr], i: Expr, local: Inliner) -> Expr:
            return left[i, at[0]]

        def right(at: Sequence[Expr], j: Expr, local: Inliner) -> Expr:
            group, place = (local.simplifier(e) for e in (at[0] // t.group, at[0] % t.group))
            return buffer[panel, group, j, place]

        loops = (values.simplifier.dim(ceil_div(index(terms), t.group)),)
        emit_dot_tile(t.b, values, self.height, (vectors, lanes), loops, element, right, out, t.product)
        return out
