"""Attention as a task for a GPU: the pieces of its definition, and its factors as they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import constant_dim
from taskmap.ir.nodes import Dim, Expr, Load, Var
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.ir.visit import children
from taskmap.schedules.cpu.attention_match import Attention, find_attention
from taskmap.schedules.cuda.factor import Factor, analyse, bare


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """An attention and its factors; ``depth`` and ``width``: of keys and values, in whole fragments."""

    task: Task
    a: Attention
    q: Factor
    k: Factor
    v: Factor

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return _padded(self.a.dot.axes[0][1])

    @property
    def width(self) -> int:
        """Elements of a value."""
        return _padded(self.a.stage.shape[3])


def _padded(size: Dim) -> int:
    return -(-(constant_dim(size) or 0) // 16) * 16


def find_attention_task(task: Task) -> AttentionTask | None:
    """The attention that anchors a task, if it has one whose sums are of f32."""
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
    return AttentionTask(task, a, q, k, v)


def is_plain(t: AttentionTask) -> bool:
    """Whether sizes are known and a score reads nothing but its query and key."""
    sizes = (*t.a.stage.shape, t.a.keys)
    return all(constant_dim(d) is not None for d in sizes) and not _reads_more(t.a.score, t.a.dot)


def _reads_more(e: Expr, dot: Expr) -> bool:
    """Whether an expression reads memory outside of ``dot``."""
    return e is not dot and (isinstance(e, Load) or any(_reads_more(c, dot) for c in children(e)))
