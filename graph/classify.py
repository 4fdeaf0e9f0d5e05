"""What kind of operator a compute definition is, read off its expression: nothing is declared, so nothing can be wrong.

view          out[axes] = x[f(axes)]                 elements move, none is computed
injective     no reduction in the body              element-wise operators, padding, gathers, concatenation
contraction   sum over k of a[.., k] * b[.., k]      matrix products and convolutions: what a template anchors on
reduction     any other definition with a Reduce     sums, softmax, pooling
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taskmap.graph.graph import Node
from taskmap.ir.construct import constant_dim
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Binary, Call, Cast, Compare, Const, Expr, Load, Reduce, Select, Unary, Var
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
        at is axis or (constant_dim(size) == 1 and _is_zero(at))
        for at, axis, size in zip(load.indices, define.axes, define.shape, strict=True)
    )


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def is_injective(define: Compute) -> bool:
    """Whether an element needs a fixed, small number of input elements: there is no reduction."""
    return not any(isinstance(e, Reduce) for e in walk_exprs(define.body))


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


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products: out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, n, k].

    The axes are those of the definition, sorted by which operand they index; an axis that indexes both is a batch axis.
    ``a`` and ``b`` are the loads; casts and guards (``select(inside, load, 0)``) may stand around them in the body.
    """

    batch: tuple[Var, ...]
    m: tuple[Var, ...]
    n: tuple[Var, ...]
    k: tuple[Var, ...]
    a: Load
    b: Load
    windowed: bool


def contraction(define: Compute) -> Contraction | None:
    """The contraction that ``define`` is, or None.

    Every summed axis must index both operands. A product without m or without n (a dot product, a matrix times a
    vector) is a row reduction and no contraction, unless it is windowed: a depthwise convolution has no n.
    """
    body = _bare(define.body)
    if not (isinstance(body, Reduce) and body.op == "sum"):
        return None
    product = _bare(body.body)
    if not (isinstance(product, Binary) and product.op == "mul" and product.dtype.is_float):
        return None
    a, b = _operand(product.a), _operand(product.b)
    if a is None or b is None:
        return None
    used_a, used_b = _vars(a.indices), _vars(b.indices)
    k = tuple(v for v, _ in body.axes)
    if any(constant_dim(n) != 1 and not (v in used_a and v in used_b) for v, n in body.axes):
        return None
    batch = tuple(v for v in define.axes if v in used_a and v in used_b)
    m = tuple(v for v in define.axes if v in used_a and v not in used_b)
    n = tuple(v for v in define.axes if v in used_b and v not in used_a)
    windowed = any(_is_window(i, define.axes, k) for i in (*a.indices, *b.indices))
    if not windowed and not (m and n):
        return None
    return Contraction(batch, m, n, k, a, b, windowed)


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e


def _operand(e: Expr) -> Load | None:
    """The load behind casts and guards that give zero where they do not hold."""
    while not isinstance(e, Load):
        if isinstance(e, Cast) or (isinstance(e, Select) and _is_zero(e.b)):
            e = e.a
        else:
            return None
    return e


def _vars(exprs: Iterable[Expr]) -> set[Var]:
    return {v for e in exprs for v in walk_exprs(e) if isinstance(v, Var)}


def _is_window(at: Expr, axes: Iterable[Var], k: Iterable[Var]) -> bool:
    used = _vars([at])
    return not used.isdisjoint(axes) and not used.isdisjoint(k)
