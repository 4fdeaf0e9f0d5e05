"""Folds batch normalisation with fixed statistics into the convolution before it.

    scale * (conv(x, w) + bias) + shift    ->    conv(x, scale * w) + (scale * bias + shift)

Both new operands depend on constants alone, so they are computed once. The normalisation is matched by its expression:
one or more element-wise nodes, affine in the convolution's result with constants per channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from taskmap.graph.analysis.classify import definition, same_position
from taskmap.graph.analysis.placement import is_convolution
from taskmap.graph.nodes import Graph, Node, OperatorNode
from taskmap.graph.passes.base import GraphPass, rewrite
from taskmap.ir.construct import const, constant_value
from taskmap.ir.nodes import Binary, Buffer, Expr, Load, Var
from taskmap.ir.task import Compute, formal
from taskmap.ir.types import f32, f64
from taskmap.ir.visit import substitute, walk_exprs


@dataclass(frozen=True, slots=True)
class FoldScales(GraphPass):
    """A per-channel scale after a convolution with constant weights moves into the weights."""

    name = "fold-scales"
    before = "duplicates are merged, so that equal users are one node"
    after = "no constant per-channel factor follows a convolution with constant weights"
    why_here = "before fusion, and after duplicates, because the convolution must have a single user"

    def run(self, graph: Graph) -> Graph:
        """The graph with scaled weights."""
        users = {n.id: len(u) for n, u in graph.users().items()}
        outputs = {n.id for n in graph.outputs if n is not None}
        lonely = {i for i, count in users.items() if count == 1 and i not in outputs}
        constant = {n.id for n in graph.computed_once()}

        def visit(node: Node) -> Node:
            found = _affine_of_convolution(node, lonely, constant)
            return node if found is None else found.folded(node)

        return rewrite(graph, visit)


@dataclass(slots=True)
class _Affine:
    """scale * value + shift per channel, as expressions of ``channel`` over constant tensors."""

    value: Node
    channel: Var
    scale: Expr
    shift: Expr
    tensors: dict[Buffer, Node] = field(default_factory=dict)

    def folded(self, node: Node) -> Node:
        """The node that replaces ``node``."""
        x, w = self.value.inputs
        scaled = self.combined("scaled_weight", w, 0, lambda weight: _times(weight, self.scale), node)
        conv = replace(self.value, inputs=(x, scaled))
        if not isinstance(self.shift, Load):
            shift = Compute("shift", tuple(self.tensors), (node.shape[1],), node.dtype, (self.channel,), self.shift)
            sources = tuple(self.tensors.values())
            made = OperatorNode(sources, shift.shape, shift.dtype, "shift", shift, origin=node.origin)
            held = formal("shift", made.shape, made.dtype)
            self.tensors, self.shift = {held: made}, held[self.channel]
        result = self.combined("add", conv, 1, lambda value: _plus(value, self.shift), node)
        return replace(result, strides=node.strides)

    def combined(self, op: str, x: Node, axis: int, function: Callable[[Expr], Expr], origin: Node) -> Node:
        """``function`` applied to every element of ``x``, whose channels are axis ``axis``."""
        axes = tuple(self.channel if d == axis else Var(f"i{d}") for d in range(len(x.shape)))
        held = formal("x", x.shape, x.dtype)
        body = function(held[axes])
        used = {e.buffer for e in walk_exprs(body) if isinstance(e, Load)}
        tensors = {held: x, **{f: n for f, n in self.tensors.items() if f in used}}
        compute = Compute(op, tuple(tensors), x.shape, x.dtype, axes, body)
        return OperatorNode(tuple(tensors.values()), x.shape, x.dtype, op, compute, origin=origin.origin)


def _affine_of_convolution(node: Node, lonely: set[int], constant: set[int]) -> _Affine | None:
    """``node`` as an affine function of a convolution that it alone uses; None if it is not, or the scale is 1."""
    affine = _Affine(node, Var("c"), const(1, node.dtype), const(0, node.dtype))
    while not is_convolution(affine.value):
        below = _affine_step(affine.value, affine, constant)
        if below is None or below.id not in lonely:
            return None
        affine.value = below
    conv = affine.value
    if conv is node or constant_value(affine.scale) == 1:
        return None
    return affine if conv.inputs[1].id in constant and not conv.attrs.get("transposed") else None


def _affine_step(node: Node, affine: _Affine, constant: set[int]) -> Node | None:
    """Folds one element-wise node into ``affine``; the node it reads, or None if it is not affine per channel."""
    if not node.is_compute or node.dtype not in (f32, f64) or len(node.shape) < 3:
        return None
    define = definition(node)
    operands = dict(zip(define.inputs, node.inputs, strict=True))
    varying = [(f, n) for f, n in operands.items() if n.id not in constant]
    if len(varying) != 1 or varying[0][1].shape != node.shape or varying[0][1].dtype != node.dtype:
        return None
    parts = _decompose(define.body, varying[0][0], define)
    if parts is None:
        return None
    scale, shift = (substitute(p, {define.axes[1]: affine.channel}) for p in parts)
    if any(e in define.axes for p in (scale, shift) for e in walk_exprs(p)):
        return None
    affine.shift = _plus(_times(affine.scale, shift), affine.shift)
    affine.scale = _times(affine.scale, scale)
    affine.tensors.update({f: n for f, n in operands.items() if n.id in constant})
    return varying[0][1]


def _decompose(e: Expr, x: Buffer, define: Compute) -> tuple[Expr, Expr] | None:
    """(scale, shift) such that ``e`` is scale * x[axes] + shift; None when it is not affine in x."""
    if isinstance(e, Load) and e.buffer is x:
        return (const(1, e.dtype), const(0, e.dtype)) if same_position(define, e) else None
    if not any(isinstance(part, Load) and part.buffer is x for part in walk_exprs(e)):
        return const(0, e.dtype), e
    if not isinstance(e, Binary):
        return None
    a, b = _decompose(e.a, x, define), _decompose(e.b, x, define)
    if a is None or b is None:
        return None
    if e.op == "add":
        return _plus(a[0], b[0]), _plus(a[1], b[1])
    if e.op == "sub" and constant_value(b[0]) == 0:
        return a[0], a[1] - b[1]
    if e.op == "mul" and constant_value(b[0]) == 0:
        return _times(a[0], b[1]), _times(a[1], b[1])
    if e.op == "mul" and constant_value(a[0]) == 0:
        return _times(b[0], a[1]), _times(b[1], a[1])
    return None


def _plus(a: Expr, b: Expr) -> Expr:
    """a + b, simplified when either is a constant zero."""
    return b if constant_value(a) == 0 else a if constant_value(b) == 0 else a + b


def _times(a: Expr, b: Expr) -> Expr:
    """a * b, simplified when either is a constant zero or one."""
    if constant_value(a) == 0 or constant_value(b) == 1:
        return a
    return b if constant_value(b) == 0 or constant_value(a) == 1 else a * b
