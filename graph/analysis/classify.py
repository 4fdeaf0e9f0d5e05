"""What kind of operator a compute definition is, read off its expression: nothing is declared, so nothing can be wrong.

view          out[axes] = x[f(axes)]                 elements move, none is computed
injective     no reduction in the body              element-wise operators, padding, gathers, concatenation
contraction   sum over k of a[.., k] * b[.., k]      matrix products and convolutions: what a template anchors on
reduction     any other definition with a Reduce     sums, softmax, pooling
scatter       a tensor with elements put into it     gradients of gathers, index_add, index_put
recurrence    a loop over steps                      LSTM, GRU, RNN
"""

from __future__ import annotations

from taskmap.graph.nodes import Node
from taskmap.ir.analysis.contraction import find_contraction
from taskmap.ir.construct import static_size
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Binary, Buffer, Call, Cast, Compare, Const, Expr, Load, Reduce, Scatter, Select, Unary, Var
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.task import Compute
from taskmap.ir.types import i64
from taskmap.ir.visit import walk_exprs

_DEAR = 8


def definition(node: Node) -> Compute:
    """The definition of a compute node. Raises GraphError for any other node."""
    if node.define is None:
        raise GraphError(f"{node!r} has no compute definition, so it cannot be part of a kernel")
    return node.define


def is_view(define: Compute) -> bool:
    """Whether the definition only moves elements, by indices that do not depend on data."""
    body = define.body
    return isinstance(body, Load) and not any(isinstance(e, (Load, Call)) for i in body.indices for e in walk_exprs(i))


def is_identity(define: Compute) -> bool:
    """Whether the definition is a plain copy of its one input, position by position."""
    body = define.body
    return isinstance(body, Load) and same_position(define, body)


def same_position(define: Compute, load: Load) -> bool:
    """Whether ``load`` reads, from a tensor of the output's shape, the element at the output's position."""
    if len(load.indices) != len(define.axes):
        return False
    return all(
        at is axis or (static_size(size) == 1 and _is_zero(at))
        for at, axis, size in zip(load.indices, define.axes, define.shape, strict=True)
    )


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def is_injective(define: Compute) -> bool:
    """Whether an element needs a fixed, small number of input elements: there is no reduction, and no scatter."""
    return not any(isinstance(e, (Reduce, Scatter, Recurrence)) for e in walk_exprs(define.body))


def is_scatter(define: Compute) -> bool:
    """Whether the definition puts elements at positions that are data."""
    return isinstance(define.body, Scatter)


def is_recurrence(define: Compute) -> bool:
    """Whether the definition is a loop over steps, each from the one before."""
    return isinstance(define.body, Recurrence)


def arithmetic_cost(define: Compute) -> int:
    """Work per element of an injective definition: 1 for a load or an operation, 8 for a function or a division."""
    cost = 0
    for e in walk_exprs(define.body):
        if e.dtype == i64 and not isinstance(e, Load):
            continue
        if isinstance(e, Call) or (isinstance(e, Binary) and e.op == "div"):
            cost += _DEAR
        elif isinstance(e, (Unary, Binary, Compare, Select, Cast, Load)):
            cost += 1
    return cost


def is_contraction(define: Compute) -> bool:
    """Whether the definition is a sum of products of floats that a template anchors on.

    A matrix product, in which each factor has an axis of the output to itself, or a window sliding over one factor, as
    a depthwise convolution. A dot product, or a matrix times a vector, is a reduction of rows and no contraction.
    """
    if not define.dtype.is_float:
        return False
    if find_contraction(define.axes, define.shape, define.body) is not None:
        return True
    body = define.body.a if isinstance(define.body, Cast) else define.body
    product = body.body if isinstance(body, Reduce) and body.op == "sum" else None
    return isinstance(product, Binary) and product.op == "mul" and len(_tensors(product)) == 2 and is_windowed(define)


def is_windowed(define: Compute) -> bool:
    """Whether a reduction slides over an input: an index depends on an output axis and on a summed one."""
    folded = {v for e in walk_exprs(define.body) if isinstance(e, Reduce) for v, _ in e.axes}
    loads = [e for e in walk_exprs(define.body) if isinstance(e, Load)] if folded else []
    used = [{v for v in walk_exprs(i) if isinstance(v, Var)} for load in loads for i in load.indices]
    return any(not u.isdisjoint(folded) and not u.isdisjoint(define.axes) for u in used)


def _tensors(e: Expr) -> set[Buffer]:
    return {load.buffer for load in walk_exprs(e) if isinstance(load, Load)}
