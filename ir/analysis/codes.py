"""Weights that are affine in a code of four bits, w = code · scale + offset, where neighbouring terms share the rest.

Sixteen codes of a column fill four words of i16 in pairs: the pair of terms 2p, 2p + 1 of each eight lies at the bits
from 4p on of two neighbouring words. A vector of words, shifted by 4p, holds a pair for each column in its lowest bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import binary, call, cast, const, constant_value, load, unary
from taskmap.ir.nodes import Binary, Broadcast, Buffer, Call, Cast, Expr, Load, Select, Unary
from taskmap.ir.types import bf16, f32, i8, i16, u8
from taskmap.ir.visit import walk_exprs

__all__ = ["BITS", "TERMS", "AffineForm", "affine", "code_of", "find_code", "integers", "is_code"]

BITS = 4
"""Bits of a code."""
TERMS = 8
"""Neighbouring terms whose codes lie in two words."""
_RANGES = {u8: (0, 255), i8: (-128, 127)}
_MASK = (1 << BITS) - 1


@dataclass(frozen=True, slots=True)
class AffineForm:
    """scale · x + offset, in f32; None for a scale of 1, or an offset of 0."""

    scale: Expr | None = None
    offset: Expr | None = None

    def of(self, x: Expr) -> Expr:
        """The value at x, rounded once where both are there."""
        if self.scale is None:
            return x if self.offset is None else x + self.offset
        return x * self.scale if self.offset is None else call("fma", x, self.scale, self.offset)

    def moved(self, by: int) -> AffineForm:
        """The same function of x - ``by``."""
        if by == 0:
            return self
        more: Expr = const(float(-by), f32)
        more = more if self.scale is None else more * self.scale
        return AffineForm(self.scale, more if self.offset is None else more + self.offset)


def code_of(words: Buffer, place: tuple[Expr, Expr, Expr]) -> Expr:
    """The code, as bf16, of a panel, a term and a column of it: ``words`` is [panels, terms / 8, columns, 2]."""
    panel, term, column = place
    word = load(words, (panel, term // TERMS, column, term % 2))
    moved = binary("shr", word, cast(term % TERMS // 2 * BITS, i16))
    return cast(binary("and", moved, const(_MASK, i16)), bf16)


def find_code(e: Expr) -> Cast | None:
    """The one code, widened to f32, from which ``e`` is computed; None without one."""
    found = {x for x in walk_exprs(e) if isinstance(x, Cast) and x.dtype == f32 and is_code(x.a)}
    return found.pop() if len(found) == 1 else None


def is_code(e: Expr) -> bool:
    """True for a code as bf16."""
    if not isinstance(e, Cast) or e.dtype != bf16 or not isinstance(e.a, Binary) or e.a.op != "and":
        return False
    mask = e.a.b.a if isinstance(e.a.b, Broadcast) else e.a.b
    return e.a.dtype == i16 and constant_value(mask) == _MASK


def affine(e: Expr, x: Expr) -> AffineForm | None:
    """``e`` as an affine function of ``x``, None if it is not written as one."""
    if e == x:
        return AffineForm()
    if isinstance(e, Unary) and e.op == "neg":
        inner = affine(e.a, x)
        return None if inner is None else _scaled(inner, const(-1.0, f32))
    if isinstance(e, Call) and e.name == "fma":
        product = affine(binary("mul", e.args[0], e.args[1]), x)
        return None if product is None or _has(e.args[2], x) else _added(product, e.args[2])
    if not isinstance(e, Binary) or e.dtype != f32 or _has(e.a, x) == _has(e.b, x):
        return None
    left = _has(e.a, x)
    inner, other = affine(e.a if left else e.b, x), e.b if left else e.a
    if inner is None:
        return None
    if e.op == "mul":
        return _scaled(inner, other)
    if e.op == "add":
        return _added(inner, other)
    if e.op == "sub":
        return _added(inner, unary("neg", other)) if left else _added(_scaled(inner, const(-1.0, f32)), other)
    return None


def _has(e: Expr, x: Expr) -> bool:
    return any(part == x for part in walk_exprs(e))


def _scaled(f: AffineForm, by: Expr) -> AffineForm:
    scale = by if f.scale is None else f.scale * by
    return AffineForm(scale, None if f.offset is None else f.offset * by)


def _added(f: AffineForm, more: Expr) -> AffineForm:
    return AffineForm(f.scale, more if f.offset is None else f.offset + more)


def integers(e: Expr) -> tuple[int, int] | None:
    """The least and the greatest value of an integer computed from bytes, as far as its form shows them."""
    if (known := constant_value(e)) is not None:
        return int(known), int(known)
    if isinstance(e, Load):
        return _RANGES.get(e.dtype)
    if isinstance(e, Cast):
        inner = integers(e.a)
        return inner if inner is not None and e.dtype.is_int and _fits(inner, e.dtype.bits, e.dtype.kind) else None
    if isinstance(e, Select):
        a, b = integers(e.a), integers(e.b)
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
    return _of_binary(e) if isinstance(e, Binary) else None


def _fits(found: tuple[int, int], bits: int, kind: str) -> bool:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind == "i" else (0, (1 << bits) - 1)
    return low <= found[0] and found[1] <= high


def _of_binary(e: Binary) -> tuple[int, int] | None:
    by = constant_value(e.b)
    if by is not None and e.op == "and" and by >= 0:
        return 0, int(by)
    a, b = integers(e.a), integers(e.b)
    if a is None or b is None:
        return None
    if e.op == "shr" and by is not None:
        return a[0] >> int(by), a[1] >> int(by)
    if e.op == "add":
        return a[0] + b[0], a[1] + b[1]
    return (a[0] - b[1], a[1] - b[0]) if e.op == "sub" else None
