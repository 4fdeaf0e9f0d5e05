"""Attention as a GPU template sees it: the parts of its definition, and the memory layouts of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskmap.ir.construct import constant_value, index, static_size
from taskmap.ir.nodes import Binary, Dim, Expr, Load, Var
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.ir.visit import children, substitute, walk_exprs
from taskmap.schedules.common.access import accesses
from taskmap.schedules.common.attention_match import Attention, find_attention
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.operand import Axes, Operand, analyse, bare

_FEW = 16
"""Queries of one product: heads with fewer leave rows free for other heads."""


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """An attention and its operands; ``depth`` and ``width`` are those of keys and values, rounded up to whole
    fragments.

    packed: heads that share keys and have few queries become the rows of one product: row r is query r % queries of
    head r // queries of its group. head: the axis that numbers such groups, or heads.
    """

    task: Task
    a: Attention
    q: Operand
    k: Operand
    v: Operand
    head: Var
    packed: int = 1

    @property
    def heads(self) -> Dim:
        """Heads, or groups of packed ones."""
        heads = self.a.stage.shape[1]
        return heads if self.packed == 1 else (static_size(heads) or 0) // self.packed

    @property
    def rows(self) -> Dim:
        """Queries of a head, or of a group of packed ones."""
        return self.a.queries if self.packed == 1 else (static_size(self.a.queries) or 0) * self.packed

    def place(self, head: Expr, row: Expr) -> dict[Var, Expr]:
        """The head and the query of a row, by their axes."""
        axes = self.a.stage.axes
        if self.packed == 1:
            return {axes[1]: head, axes[2]: row}
        return {axes[1]: head * self.packed + row // self.a.queries, axes[2]: row % self.a.queries}

    def seen(self, first: Expr, rows: int) -> tuple[Expr, Expr]:
        """The first and the last query of the rows ``first`` to ``first + rows``."""
        if self.packed == 1:
            return first, first + (rows - 1)
        return index(0), index(self.a.queries) - 1

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return _padded(self.a.dot.axes[0][1])

    @property
    def width(self) -> int:
        """Elements of a value."""
        return _padded(self.a.stage.shape[3])


def _padded(size: Dim) -> int:
    return -(-(static_size(size) or 0) // 16) * 16


def find_attention_task(task: Task) -> AttentionTask | None:
    """The attention that anchors a task, if its sums are of f32, else None."""
    a = find_attention(task)
    if a is None or a.dot.dtype != f32:
        return None
    batch, heads, query, place = zip(a.stage.axes, a.stage.shape, strict=True)
    position = a.v.indices[2]
    if not isinstance(position, Var):
        return None
    outer, depth, keys = (batch, heads), (a.dot.axes[0],), a.keys
    q = analyse(task, a.dot.body.a, outer, (query,), depth)  # type: ignore[attr-defined]  # find_attention saw a product
    k = analyse(task, a.dot.body.b, outer, ((a.key, keys),), depth)  # type: ignore[attr-defined]
    v = analyse(task, bare(a.v), outer, (place,), ((position, keys),))
    found = AttentionTask(task, a, q, k, v, heads[0])
    count = static_size(a.queries)
    size = 1 if count is None or count >= _FEW else shared_heads(task, (batch, heads), (k, v))
    return found if size == 1 else _packed(found, size)


def _packed(t: AttentionTask, size: int) -> AttentionTask:
    """The same with the queries of ``size`` heads as the rows of one product."""
    (batch, n), (head, heads), (query, queries), _ = zip(t.a.stage.axes, t.a.stage.shape, strict=True)
    group, row = Var("group"), Var("row")
    outer = ((batch, n), (group, (static_size(heads) or 0) // size))
    rows = replace(t, head=group, packed=size)
    there = {head: group * size + row // queries, query: row % queries}
    q = analyse(t.task, substitute(t.q.expr, there), outer, ((row, rows.rows),), t.q.k)
    k, v = (analyse(t.task, substitute(f.expr, {head: group * size}), outer, f.mn, f.k) for f in (t.k, t.v))
    return replace(rows, q=q, k=k, v=v)


def shared_heads(task: Task, outer: Axes, operands: Sequence[Operand]) -> int:
    """The number of neighbouring heads that read the same elements of the operands, whose batch axes are ``outer``: the
    divisor through which these depend on their head. 1 if there is none, or if none divides the number of heads."""
    head, heads = outer[1]
    found = {_divisor(task, f, outer, head) for f in operands}
    size = found.pop()
    count = static_size(heads)
    return 1 if found or count is None or count % size else size


def _divisor(task: Task, f: Operand, batch: Axes, head: Var) -> int:
    axes = (*batch, *f.mn, *f.k)

    def read(values: Inliner) -> None:
        values.expand(f.expr, {})

    for walk in accesses(task, [v for v, _ in axes], [d for _, d in axes], (), read):
        for e in (e for i in walk.indices for e in walk_exprs(i)):
            if isinstance(e, Binary) and e.op == "floordiv" and e.a is head:
                return int(constant_value(e.b) or 1)
    return 1


def is_plain(t: AttentionTask) -> bool:
    """True if all sizes are static and a score reads only its query and key."""
    sizes = (*t.a.stage.shape, t.a.keys)
    return all(static_size(d) is not None for d in sizes) and not _reads_more(t.a.score, t.a.dot)


def _reads_more(e: Expr, dot: Expr) -> bool:
    """True if an expression reads memory outside of ``dot``."""
    return e is not dot and (isinstance(e, Load) or any(_reads_more(c, dot) for c in children(e)))
