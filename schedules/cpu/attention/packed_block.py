"""A block of queries whose products read packed operands: keys and values in groups of neighbours along their sums.

    pack the keys and the values of a block
    for each tile of queries:
        hold its queries, in rows that are whole groups
        s = q kᵀ;   p = exp(s - m), rounded;   l = l + sum of the weights before rounding;   o = o + p v

Weights are rounded to the type of the values, as PyTorch's fused attention does.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

from taskmap.ir.construct import index, minimum
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Dim, Expr
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.attention.query_block import QueryBlock, QueryTile


@dataclass(slots=True, kw_only=True)
class PackedQueryBlock(QueryBlock):
    """A block of queries with the packed values of a block of keys, and the queries of one tile."""

    queries_held: Buffer = field(init=False)
    values_packed: Buffer = field(init=False)


@dataclass(frozen=True, slots=True)
class PackedQueryTile(QueryTile):
    """A tile of queries whose products read packed operands."""

    block: PackedQueryBlock

    def emit(self, values: Inliner, seen: Expr | None) -> None:
        """All work of a tile on a block of keys; ``seen``: the number of keys that any of its queries sees."""
        t = self.block
        self.hold_queries(values.nested())
        columns = self.multiply_keys(values.nested(), seen)
        self.to_weights(values.nested(), columns)
        self.multiply_weights(values.nested(), columns, seen)
        if t.single:
            t.finish(values.nested(), self.row, self.height)

    def hold_queries(self, values: Inliner) -> None:
        """Copies the queries of the tile; rows beyond the last query repeat it."""
        t, a = self.block, self.block.a
        with t.b.loop("row", self.height) as i:
            values.bind(i, self.height)
            query = values.simplifier(minimum(self.query + i, index(a.queries) - 1))
            for d, inside in each_column(t.b, values.nested(), column_groups(a.depth, t.target.lanes(2))):
                t.b.store(t.queries_held, (i, d), t.narrow(a.q, (query, d), inside))

    @abstractmethod
    def multiply_weights(self, values: Inliner, columns: Dim, seen: Expr | None) -> None:
        """sums += weights v, for the weights of ``columns`` keys, of which ``seen`` are of a block (None: all)."""
