"""Recognises an attention stage and extracts its parts from its definition."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Binary, Cast, Dim, Expr, Load, Reduce, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import walk_exprs


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention stage: its tensors, and its score for (query, key) in terms of the product ``dot``."""

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
    def depth(self) -> int:
        """Elements of a key."""
        return static_size(self.dot.axes[0][1]) or 0

    @property
    def width(self) -> int:
        """Elements of a value."""
        return static_size(self.stage.shape[3]) or 0

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
    reductions = [e for e in walk_exprs(stage.body) if isinstance(e, Reduce)]
    top = next((e for e in reductions if e.op == "max"), None)
    if top is None:
        return None
    dot = next((e for e in walk_exprs(top.body) if isinstance(e, Reduce) and e.op == "sum"), None)
    v = next((e for e in walk_exprs(stage.body) if isinstance(e, Load) and e.indices[-1] is stage.axes[3]), None)
    if dot is None or v is None or not isinstance(dot.body, Binary):
        return None
    q, k = _bare(dot.body.a), _bare(dot.body.b)
    if not isinstance(q, Load) or not isinstance(k, Load) or static_size(stage.shape[3]) is None:
        return None
    if static_size(dot.axes[0][1]) is None:
        return None
    return Attention(stage, top.body, top.axes[0][0], dot, q, k, v, bool(dict(stage.attrs)["causal"]))


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e
