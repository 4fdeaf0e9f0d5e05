"""Recognising a contraction, out[b, m, n] = sum over k of A[b, m, k] * B[b, n, k], from its expression alone.

An axis of the output is a batch axis if both factors depend on it, an M axis if only the first does, an N axis if only
the second does. The factors may be any expressions: a convolution is a contraction whose first factor reads a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.nodes import Binary, Cast, Dim, Expr, Reduce, Var
from taskmap.ir.types import DType, compute_type, i8, i32, u8
from taskmap.ir.visit import walk_exprs

BYTES = (u8, i8)
"""The types of factors whose products are summed as i32."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """The parts of a contraction. ``reduce`` is its Reduce node; each axis comes with its extent."""

    reduce: Reduce
    a: Expr
    b: Expr
    batch: tuple[tuple[Var, Dim], ...]
    m: tuple[tuple[Var, Dim], ...]
    n: tuple[tuple[Var, Dim], ...]
    k: tuple[tuple[Var, Dim], ...]


def find_contraction(axes: Sequence[Var], shape: Sequence[Dim], body: Expr) -> Contraction | None:
    """The contraction that ``body`` computes at each point of ``axes``, or None if it is not a contraction.

    Every summed axis must occur in both factors, and each factor must depend on an output axis that the other does not
    depend on.
    """
    while isinstance(body, Cast):
        body = body.a
    if not isinstance(body, Reduce) or body.op != "sum" or not isinstance(body.body, Binary) or body.body.op != "mul":
        return None
    a, b = body.body.a, body.body.b
    in_a, in_b = _variables(a), _variables(b)
    if not all(v in in_a and v in in_b for v, _ in body.axes):
        return None
    pairs = list(zip(axes, shape, strict=True))
    batch = tuple((v, d) for v, d in pairs if v in in_a and v in in_b)
    m = tuple((v, d) for v, d in pairs if v in in_a and v not in in_b)
    n = tuple((v, d) for v, d in pairs if v in in_b and v not in in_a)
    if not m or not n:
        return None
    return Contraction(body, a, b, batch, m, n, body.axes)


def byte_factor(e: Expr) -> DType | None:
    """The type of a factor that is an integer of eight bits widened to i32; None for any other factor."""
    return e.a.dtype if isinstance(e, Cast) and e.dtype == i32 and e.a.dtype in BYTES else None


def unconverted(e: Expr) -> Expr:
    """A factor before its conversion to the type of the sum: a wider float, or i32 from a byte."""
    if not isinstance(e, Cast):
        return e
    widened = e.a.dtype.is_float and e.dtype == compute_type(e.a.dtype)
    return e.a if widened or byte_factor(e) is not None else e


def byte_factors(body: Expr) -> tuple[DType, DType] | None:
    """The types of the factors of a sum, as i32, of products of two integers of eight bits; None for anything else."""
    if not isinstance(body, Reduce) or body.op != "sum" or not isinstance(body.body, Binary) or body.body.op != "mul":
        return None
    a, b = byte_factor(body.body.a), byte_factor(body.body.b)
    return None if a is None or b is None else (a, b)


def multiplies_bytes(body: Expr) -> bool:
    """True for a sum, as i32, of products of two integers of eight bits."""
    return byte_factors(body) is not None


def _variables(e: Expr) -> set[Expr]:
    return {x for x in walk_exprs(e) if isinstance(x, Var)}
