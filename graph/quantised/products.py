"""Products of quantised tensors: integers of eight bits, less their zero points, multiplied and summed as i32.

    sum (a - p)·(b - q)  =  sum a·b  -  p·(sum of column of b)  -  q·(sum of row of a)  +  k·p·q

The product itself is one of bytes; zero points become terms added to it. All of it wraps at 32 bits, so the result is
exact whenever the sum fits i32. A zero point known to be 0 has no term, and the sums of a constant are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taskmap.graph.build import define, elementwise, reduction
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.ir.construct import binary, cast, const, index, reduce
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import f32, i8, i32, u8

__all__ = ["LONGEST", "QuantisedOperand", "byte_sums", "corrected", "integer_product", "product_with_bytes", "signed"]

LONGEST = ((1 << 31) - 1) // (255 * 255)
"""Terms that a sum of products of differences of bytes may have without leaving i32: 33025."""


@dataclass(frozen=True, slots=True)
class QuantisedOperand:
    """A tensor of u8 or i8 and its zero point, which broadcasts to it; None for a zero point of 0. known: the zero
    point's value if it is one number that never changes."""

    values: Node
    zero: Node | None = None
    known: int | None = None

    @property
    def shifted(self) -> bool:
        """True unless the zero point is known to be 0."""
        return self.zero is not None and self.known != 0


def signed(x: QuantisedOperand) -> QuantisedOperand:
    """The same factor as i8, if its zero point is known: 128 less, like its elements."""
    if x.values.dtype != u8 or x.known is None or x.zero is None:
        return x
    flipped = elementwise("flip", [x.values], lambda e: cast(binary("xor", e, const(128, u8)), i8), i8)
    zero = elementwise("shift", [to_dtype(x.zero, i32)], lambda e: e - const(128, i32), i32)
    return QuantisedOperand(flipped, zero, x.known - 128)


def integer_product(a: QuantisedOperand, b: QuantisedOperand, multiply: Callable[[Node, Node], Node]) -> Node:
    """The product of two matrices, or of batches of them, as i32. ``multiply``: the product without zero points. The
    zero point of a may differ by row, that of b by column."""
    b = signed(b)
    total = multiply(a.values, b.values)
    columns = byte_sums(b.values, (len(b.values.shape) - 2,)) if a.shifted else None
    rows = byte_sums(a.values, (len(a.values.shape) - 1,)) if b.shifted else None
    return corrected(total, a.values.shape[-1], (a, b), (rows, columns))


def corrected(
    total: Node, terms: Dim, factors: tuple[QuantisedOperand, QuantisedOperand], sums: tuple[Node | None, Node | None]
) -> Node:
    """``total``, a sum of ``terms`` products of the values of two factors, corrected for their zero points. sums: of
    the values of each factor, None if the other's zero point is 0; they and the zero points broadcast to ``total``."""
    (a, b), (of_a, of_b) = factors, sums
    if of_b is not None and a.zero is not None:
        held = [to_dtype(a.zero, i32), of_b, *([to_dtype(b.zero, i32)] if b.shifted and b.zero is not None else [])]

        def left(p: Expr, s: Expr, *q: Expr) -> Expr:
            return p * (s - cast(index(terms), i32) * q[0]) if q else p * s

        moved = elementwise("zero_term", held, left, i32)
        total = elementwise("correct", [total, moved], lambda t, m: t - m, i32)
    if of_a is not None and b.zero is not None:
        moved = elementwise("zero_term", [to_dtype(b.zero, i32), of_a], lambda q, s: q * s, i32)
        total = elementwise("correct", [total, moved], lambda t, m: t - m, i32)
    return total


def byte_sums(x: Node, dims: tuple[int, ...]) -> Node:
    """The sums of ``x`` over ``dims``, which keep size 1, as i32."""
    return reduction("byte_sums", x, dims, True, "sum", lambda e: cast(e, i32), dtype=i32)


def product_with_bytes(x: Node, w: Node) -> Node:
    """x [m, k] of floats @ w [n, k] transposed, of i8: the sums as f32. The bytes are widened as they are read."""

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(i: Expr, j: Expr) -> ExprLike:
            k = Var("k")
            return reduce("sum", [(k, x.shape[1])], cast(f[i, k], f32) * cast(g[j, k], f32))

        return at

    return define("product_with_bytes", [x, w], (x.shape[0], w.shape[0]), element, f32)
