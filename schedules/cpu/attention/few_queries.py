"""A block of few queries, as in a decoder's step: keys stay where they are, and a score is the dot product of two rows.

Transposing a key takes longer than its products with some queries; and what a sum over lanes takes, a query pays for
each key.
"""

from __future__ import annotations

from taskmap.ir.construct import const, index, lane_reduce, load, minimum, ramp
from taskmap.ir.nodes import Expr, Scope
from taskmap.ir.types import f32
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import lane_kind
from taskmap.schedules.cpu.attention.query_block import QueryBlock, QueryTile


class FewQueriesBlock(QueryBlock):
    """A block of queries that reads keys in place."""

    __slots__ = ()

    def allocate(self) -> None:
        """Allocate the buffers of scores and sums."""
        self.allocate_sums()

    def transpose_keys(self, values: Inliner, key: Expr) -> None:
        """Nothing: a key is a row."""

    def tile_at(self, query: Expr, row: Expr, height: int, key: Expr) -> QueryTile:
        return _Tile(self, query, row, height, key)


class _Tile(QueryTile):
    __slots__ = ()

    def panel(self, values: Inliner, column: Expr, groups: list[tuple[int, int]]) -> None:
        """Scores of the keys from ``column`` of the block on, one by one."""
        t, a, b = self.block, self.block.a, self.block.b
        lanes, count = t.lanes, sum(v * w for v, w in groups)
        out = b.allocate("tile", f32, (self.height, count))
        with b.loop("key", index(count)) as j:
            values.bind(j, count)
            row = values.simplifier(minimum(self.key + column + j, index(a.keys) - 1))
            for i in range(self.height):
                query = values.simplifier(minimum(self.query + i, index(a.queries) - 1))
                sums = b.allocate("sum", f32, (lanes,), Scope.REGISTER)
                with b.loop("lane", lanes, lane_kind(lanes)) as lane:
                    inside = values.nested()
                    inside.bind(lane, lanes)
                    b.store(sums, lane, const(0.0, f32))
                    for first in range(0, a.depth, lanes):
                        x = t.head(a.q, (query, lane + first), inside)
                        b.store(sums, lane, sums[lane] + x * t.head(a.k, (row, lane + first), inside))
                b.store(out, (index(i), j), lane_reduce("sum", load(sums, (ramp(0, 1, lanes),))))
        self.score(values, out, column, groups)
