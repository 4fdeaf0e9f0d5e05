"""A block of queries whose products run on tile registers: bf16 operands, f32 scores and sums.

    pack the keys in pairs of neighbouring elements, and the values in pairs of neighbouring keys
    for each tile of 32 queries:
        s = scores of the tile                        tiles of queries · tiles of keys
        p = exp(s - m), rounded;  l = l + sum of the weights before rounding
        o = o + p v                                   tiles of weights · tiles of values

Keys beyond the last one have weight 0, and their values are zeros, so nothing beside an edge enters a sum. Weights are
rounded to the type of the values, as PyTorch's fused attention does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from taskmap.ir.builder import region
from taskmap.ir.construct import (
    const,
    index,
    minimum,
    select,
    static_size,
)
from taskmap.ir.construct import product as size_of
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import f32
from taskmap.schedules.common.attention_match import Attention
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.attention.config import AttentionConfig
from taskmap.schedules.cpu.attention.packed_block import PackedQueryBlock, PackedQueryTile
from taskmap.schedules.cpu.attention.query_block import QueryTile
from taskmap.schedules.cpu.matmul.amx_tile import Place, TileUnit, multiply_tiles, tile_unit
from taskmap.schedules.cpu.matmul.microkernel import Tile

_FEWEST_QUERIES = 8
_MOST_QUERIES, _MOST_KEYS = 256, 512
"""Queries and keys of a block: their operands, scores and sums stay in the second-level cache."""
_UNKNOWN_QUERIES, _UNKNOWN_KEYS = 64, 128


def attention_unit(a: Attention, target: CpuTarget) -> TileUnit | None:
    """The instructions for both products of an attention on tiles; None if its operands and its result are not of one
    type that ``target`` multiplies by tiles, or if it has too few queries to fill one."""
    types = {a.q.buffer.dtype, a.k.buffer.dtype, a.v.buffer.dtype, a.stage.out.dtype}
    queries = static_size(a.queries)
    if len(types) > 1 or a.dot.dtype != f32 or (queries is not None and queries < _FEWEST_QUERIES):
        return None
    unit = tile_unit(a.q.buffer.dtype, a.k.buffer.dtype, target)
    return unit if unit is not None and unit.width % target.lanes(4) == 0 else None


def tile_config(a: Attention, unit: TileUnit, target: CpuTarget) -> AttentionConfig:
    """Blocks of whole tiles: as few as fit the caches, as many as keep all cores busy."""
    queries, keys = static_size(a.queries), static_size(a.keys)
    tile = Tile(unit.height, unit.width // target.lanes(4))
    if queries is None:
        rows = _UNKNOWN_QUERIES
    else:
        tasks = static_size(size_of(a.stage.shape[:2])) or target.cores
        parts = max(-(-queries // _MOST_QUERIES), min(-(-target.cores // tasks), -(-queries // unit.height)))
        rows = -(-queries // parts)
    blocks = 1 if keys is None else -(-keys // _MOST_KEYS)
    columns = _UNKNOWN_KEYS if keys is None else -(-keys // blocks)
    if blocks > 1:
        columns = -(-columns // unit.width) * unit.width
    return AttentionConfig(-(-rows // unit.height) * unit.height, columns, tile)


@dataclass(slots=True, kw_only=True)
class TileQueryBlock(PackedQueryBlock):
    """A block of queries on tile registers. Its local buffers hold keys and values in the groups of ``unit``, 32
    columns to a panel, the queries of one tile, and their scores and weights."""

    unit: TileUnit

    @property
    def columns(self) -> int:
        """Keys of a block, rounded up to whole steps and whole panels."""
        whole = max(self.unit.width, self.unit.depth)
        return -(-self.keys // whole) * whole

    @property
    def depth(self) -> int:
        """Elements of a key, rounded up to whole steps."""
        return -(-self.a.depth // self.unit.depth) * self.unit.depth

    @property
    def panels(self) -> int:
        """Panels of the elements of a value."""
        return -(-self.a.width // self.unit.width)

    def allocate(self) -> None:
        """Allocate the local buffers, and fill what packing leaves open with zeros."""
        b, a, unit = self.b, self.a, self.unit
        group, narrow = unit.tiles.group, unit.tiles.spec.b
        kept = self.height if self.single else self.rows
        carried = None if self.single else 0.0
        panels = self.columns // unit.width
        self.keys_t = b.allocate("keys_t", narrow, (panels, self.depth // group, unit.width, group))
        self.values_packed = b.allocate(
            "values_packed", narrow, (self.panels, self.columns // group, unit.width, group)
        )
        self.queries_held = b.allocate("queries", narrow, (self.height, self.depth))
        if self.depth != a.depth:
            b.fill(self.keys_t, const(0, narrow))
            b.fill(self.queries_held, const(0, narrow))
        if a.width % unit.width:
            b.fill(self.values_packed, const(0, narrow))
        self.scores = b.allocate("scores", f32, (self.height, self.columns))
        self.weights = b.allocate("weights", narrow, (self.height, self.columns))
        self.sums = b.allocate("sums", f32, (kept, self.panels * unit.width), init=carried)
        self.top = b.allocate("top", f32, (kept,), init=None if self.single else -math.inf)
        self.total = b.allocate("total", f32, (kept,), init=carried)

    def tile_at(self, query: Expr, row: Expr, height: int, key: Expr) -> QueryTile:
        """A tile of ``height`` queries from ``query`` on, number ``row`` of the block, against keys from ``key`` on."""
        return UnitQueryTile(self, query, row, height, key)

    def transpose_keys(self, values: Inliner, key: Expr) -> None:
        """Packs the keys and the values of a block."""
        self.pack_keys(values.nested(), key)
        self.pack_values(values.nested(), key)

    def pack_keys(self, values: Inliner, key: Expr) -> None:
        """[panel, group of elements, key, element]; columns beyond the last key repeat it."""
        b, a, size = self.b, self.a, self.unit.tiles.group
        whole, rest = divmod(a.depth, size)
        width, by_columns = self.unit.width, self.keys_are_columns()

        def put(inside: Inliner, j: Expr, group: Expr, place: Expr) -> None:
            row = inside.simplifier(minimum(key + j, index(a.keys) - 1))
            element = self.narrow(a.k, (row, group * size + place), inside)
            b.store(self.keys_t, (j // width, group, j % width, place), element)

        if by_columns:
            with b.loop("panel", self.columns // width) as p:
                values.bind(p, self.columns // width)
                with b.loop("group", -(-a.depth // size)) as group:
                    values.bind(group, -(-a.depth // size))
                    for j, inside in each_column(b, values.nested(), column_groups(width, self.lanes)):
                        for place in range(size):
                            if rest and place >= rest:
                                with b.when(group < whole):
                                    put(inside, p * width + j, group, index(place))
                            else:
                                put(inside, p * width + j, group, index(place))
            return
        with b.loop("key", self.columns) as key_at:
            values.bind(key_at, self.columns)
            with b.loop("group", whole) as group:
                values.bind(group, whole)
                with b.loop("place", size, LoopKind.VECTOR) as at:
                    inside = values.nested()
                    inside.bind(at, size)
                    put(inside, key_at, group, at)
            with b.loop("place", rest) as at:
                values.bind(at, rest)
                put(values.nested(), key_at, index(whole), at)

    def pack_values(self, values: Inliner, key: Expr) -> None:
        """[panel, group of keys, element, key]; zeros beyond the last key."""
        b, a, size, width = self.b, self.a, self.unit.tiles.group, self.unit.width
        known = static_size(a.keys)
        edges = known is None or known % self.columns != 0

        def put(panel: Expr, group: Expr, groups: list[tuple[int, int]], inside: Inliner) -> None:
            for d, each in each_column(b, inside, groups):
                for place in range(size):
                    row = each.simplifier(key + group * size + place)
                    held = each.simplifier(minimum(row, index(a.keys) - 1))
                    element = self.narrow(a.v, (held, panel * width + d), each)
                    if edges:
                        element = select(each.simplifier(row < a.keys), element, const(0, element.dtype))
                    b.store(self.values_packed, (panel, group, d, place), element)

        whole, rest = divmod(a.width, width)
        with b.loop("group", self.columns // size) as group:
            values.bind(group, self.columns // size)
            with b.loop("panel", whole) as p:
                values.bind(p, whole)
                put(p, group, column_groups(width, self.lanes), values.nested())
            if rest:
                put(index(whole), group, column_groups(rest, self.lanes), values.nested())


@dataclass(frozen=True, slots=True)
class UnitQueryTile(PackedQueryTile):
    """A tile of queries whose products run on tile registers."""

    block: TileQueryBlock

    def rows(self, values: Inliner) -> Dim:
        """The queries of the tile that exist."""
        queries = static_size(self.block.a.queries)
        if queries is not None and queries % self.height == 0:
            return self.height
        return values.simplifier.dim(minimum(index(self.block.a.queries) - self.query, self.height))

    def panel(self, values: Inliner, column: Expr, groups: list[tuple[int, int]]) -> None:
        """Scores of the keys from ``column`` of the block on."""
        t, unit = self.block, self.block.unit
        out = t.b.allocate("tile", f32, (self.height, unit.width))
        number = values.simplifier(column // unit.width)
        self.multiply(t.queries_held, t.keys_t, number, t.depth // unit.depth, out)
        self.score(values, out, column, groups)

    def multiply(self, left: Buffer, packed: Buffer, panel: Expr, steps: Dim, out: Buffer) -> None:
        """``out`` = rows of ``left`` · a panel of ``packed``."""
        t, unit = self.block, self.block.unit
        pairs = unit.depth // unit.tiles.group
        group = unit.tiles.group

        def rows(i: int, k: Expr) -> Place:
            start = (index(i * unit.rows), k * unit.depth)
            return region(left, start, (unit.rows, unit.depth)), index(static_size(left.shape[1]) or 0)

        def columns(j: int, k: Expr) -> Place:
            start = (panel, k * pairs, index(j * unit.columns), index(0))
            return region(packed, start, (1, pairs, unit.columns, group)), index(unit.width * group)

        multiply_tiles(t.b, unit, steps, rows, columns, (out, index(0)))

    def multiply_weights(self, values: Inliner, columns: Dim, seen: Expr | None) -> None:
        """sums += weights v."""
        t, b, unit = self.block, self.block.b, self.block.unit
        steps = values.simplifier.dim(index(columns) // unit.depth)
        with b.loop("panel", t.panels) as p:
            values.bind(p, t.panels)
            out = b.allocate("tile", f32, (self.height, unit.width))
            self.multiply(t.weights, t.values_packed, p, steps, out)
            with b.loop("row", index(self.rows(values))) as i:
                values.bind(i, self.height)
                for d, _ in each_column(b, values.nested(), column_groups(unit.width, t.lanes)):
                    place = (self.kept + i, p * unit.width + d)
                    b.store(t.sums, place, out[i, d] if t.single else t.sums[place] + out[i, d])
