"""What kind of operator a compute definition is, read off its expression: nothing is declared, so nothing can be wrong.

view          out[axes] = x[f(axes)]                 elements move, none is computed
injective     no reduction in the body              element-wise operators, padding, gathers, concatenation
contraction   sum over k of a[.., k] * b[.., k]      matrix products and convolutions: what a template anchors on
reduction     any other definition with a Reduce     sums, softmax, pooling
"""

from __future__ import annotations

from taskmap.ir.nodes import Binary, Call, Cast, Compare, Expr, Load, Reduce, Select, Unary
from taskmap.ir.task import Compute
from taskmap.ir.types import i64
from taskmap.ir.visit import walk_exprs


def is_view(define: Compute) -> bool:
    """Whether the definition only moves elements, by indices that do not depend on data."""
    body = define.body
    return isinstance(body, Load) and not any(isinstance(e, Load) for i in body.indices for e in walk_exprs(i))


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
            cost += 8
        elif isinstance(e, (Unary, Binary, Compare, Select, Cast, Load)):
            cost += 1
    return cost


def loads(expr: Expr) -> list[Load]:
    """Every load in ``expr``, those inside indices included."""
    return [e for e in walk_exprs(expr) if isinstance(e, Load)]
