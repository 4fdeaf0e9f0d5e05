"""The class of an operator, derived from its definition's expression. Nothing is declared, so nothing can be wrong.

view          out[axes] = x[f(axes)]                 moves elements and computes nothing
injective     no reduction in the body              element-wise operators, padding, gathers, concatenation
contraction   sum over k of a[.., k] * b[.., k]      matrix products and convolutions: the anchors of templates
reduction     any other definition with a Reduce     sums, softmax, pooling
scatter       a tensor with elements put into it     gradients of gathers, index_add, index_put
recurrence    a loop over steps                      LSTM, GRU, RNN
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from taskmap.graph.nodes import Node, OperatorNode
from taskmap.ir.analysis.contraction import find_contraction, multiplies_bytes
from taskmap.ir.construct import static_size
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Binary, Buffer, Call, Cast, Compare, Const, Expr, Load, Reduce, Scatter, Select, Unary, Var
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.task import Compute
from taskmap.ir.types import i64
from taskmap.ir.visit import walk_exprs

_DEAR = 8
_remembered = lru_cache(maxsize=4096)
"""Passes and planning ask the same of a definition again and again, and definitions do not change."""


def definition(node: Node) -> Compute:
    """The definition of a compute node. Raises GraphError for any other node."""
    if node.define is None:
        raise GraphError(f"{node!r} has no compute definition, so it cannot be part of a kernel")
    return node.define


def redefined(node: Node, inputs: tuple[Node, ...], define: Compute) -> OperatorNode:
    """The operator ``node`` with another definition, of other inputs."""
    assert isinstance(node, OperatorNode)
    return replace(node, inputs=inputs, define=define)


@_remembered
def is_view(define: Compute) -> bool:
    """True if the definition only moves elements, by indices that do not depend on data."""
    body = define.body
    return isinstance(body, Load) and not any(isinstance(e, (Load, Call)) for i in body.indices for e in walk_exprs(i))


def is_identity(define: Compute) -> bool:
    """True if the definition copies its one input position by position."""
    body = define.body
    return isinstance(body, Load) and same_position(define, body)


def same_position(define: Compute, load: Load) -> bool:
    """True if ``load`` reads the element at the output's own position, from a tensor of the output's shape."""
    if len(load.indices) != len(define.axes):
        return False
    return all(
        at is axis or (static_size(size) == 1 and _is_zero(at))
        for at, axis, size in zip(load.indices, define.axes, define.shape, strict=True)
    )


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


@_remembered
def is_injective(define: Compute) -> bool:
    """True if an element needs a fixed, small number of input elements: no reduction, scatter or recurrence."""
    return not any(isinstance(e, (Reduce, Scatter, Recurrence)) for e in walk_exprs(define.body))


def is_scatter(define: Compute) -> bool:
    """True if the definition writes elements at positions that depend on data."""
    return isinstance(define.body, Scatter)


def is_recurrence(define: Compute) -> bool:
    """True if the definition is a loop over steps, each computed from its predecessor."""
    return isinstance(define.body, Recurrence)


@_remembered
def arithmetic_cost(define: Compute) -> int:
    """Work per element of an injective definition: 1 per load or operation, 8 per function call or division."""
    cost = 0
    for e in walk_exprs(define.body):
        if e.dtype == i64 and not isinstance(e, Load):
            continue
        if isinstance(e, Call) or (isinstance(e, Binary) and e.op == "div"):
            cost += _DEAR
        elif isinstance(e, (Unary, Binary, Compare, Select, Cast, Load)):
            cost += 1
    return cost


@_remembered
def is_contraction(define: Compute) -> bool:
    """True if the definition is a sum of products of floats, or of bytes, that can anchor a template.

    Either a matrix product, in which each operand has an output axis of its own, or a window that slides over one
    operand, as in a depthwise convolution. A dot product or a matrix-vector product counts as a row reduction instead.
    """
    if not define.dtype.is_float and not multiplies_bytes(define.body):
        return False
    if find_contraction(define.axes, define.shape, define.body) is not None:
        return True
    if not define.dtype.is_float:
        return False
    body = define.body.a if isinstance(define.body, Cast) else define.body
    product = body.body if isinstance(body, Reduce) and body.op == "sum" else None
    return isinstance(product, Binary) and product.op == "mul" and len(_tensors(product)) == 2 and is_windowed(define)


def is_windowed(define: Compute) -> bool:
    """True if a reduction slides over an input: an index depends on an output axis and on a reduced one."""
    folded = {v for e in walk_exprs(define.body) if isinstance(e, Reduce) for v, _ in e.axes}
    loads = [e for e in walk_exprs(define.body) if isinstance(e, Load)] if folded else []
    used = [{v for v in walk_exprs(i) if isinstance(v, Var)} for load in loads for i in load.indices]
    return any(not u.isdisjoint(folded) and not u.isdisjoint(define.axes) for u in used)


def _tensors(e: Expr) -> set[Buffer]:
    return {load.buffer for load in walk_exprs(e) if isinstance(load, Load)}
