"""A pair of conversions of which the first is exact becomes one conversion, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.graph.analysis.classify import definition, redefined, same_position
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, no_node, rewrite
from taskmap.graph.passes.views import SINGLE_VIEWS
from taskmap.ir.construct import cast
from taskmap.ir.nodes import Cast, Load
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class FoldCasts(GraphPass):
    """to(to(x, wider), type) -> to(x, type), or x itself when that is already its type."""

    name = "fold-casts"
    before = ""
    after = "no conversion follows an exact one"
    why_here = "after views, which may lie between two conversions; before duplicates, of which it creates some"
    requires = (SINGLE_VIEWS,)
    ensures = (no_node("no conversion follows an exact one", lambda n: _visit(n) is not n),)

    def run(self, graph: Graph) -> Graph:
        """The graph with such pairs replaced."""
        return rewrite(graph, _visit)


def _visit(node: Node) -> Node:
    outer = converted(node)
    inner = converted(node.inputs[0]) if outer is not None else None
    if outer is None or inner is None or not is_exact(inner.dtype, outer.dtype):
        return node
    source = node.inputs[0].inputs[0]
    if source.dtype == node.dtype:
        return source if node.strides is None else node
    define = definition(node.inputs[0])
    body = cast(inner, node.dtype)
    return redefined(node, (source,), replace(define, name=node.op, dtype=node.dtype, body=body))


def converted(node: Node) -> Load | None:
    """The load that ``node`` converts element by element; None when it does anything else."""
    if not node.is_compute or len(node.inputs) != 1:
        return None
    define = definition(node)
    body = define.body
    if not (isinstance(body, Cast) and isinstance(body.a, Load) and node.shape == node.inputs[0].shape):
        return None
    return body.a if same_position(define, body.a) else None


def is_exact(a: DType, b: DType) -> bool:
    """True if every value of type ``a`` is also a value of type ``b``."""
    if a.is_bool or a == b:
        return True
    if b.is_float:
        return _digits(b) >= _digits(a) and (not a.is_float or _exponent(b) >= _exponent(a))
    if a.is_float or b.is_bool:
        return False
    return b.bits > a.bits if a.kind != b.kind else b.bits >= a.bits and a.kind == b.kind


def _digits(t: DType) -> int:
    """Bits of precision: of the significand of a float, of the magnitude of an integer."""
    return {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(t.name, t.bits - (t.kind == "i"))


def _exponent(t: DType) -> int:
    return {"f64": 11, "f32": 8, "f16": 5, "bf16": 8}[t.name]
