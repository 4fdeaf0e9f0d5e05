"""The address of every lane of a vector: a base, and the digits of a mixed-radix counter.

    ramp(base, 1, 16)                       base; digits (16: 1)
    broadcast(x, 16)                        x; digits (16: 0)
    ramp(ramp(base, s, 2), bcast(1, 2), 16) base; digits (2: s), (16: 1), innermost first

Lane l has the digits of l; its address is the base plus the sum of digit times stride. Bases and strides are
polynomials in named symbols, so a symbolic row stride is a digit like any other. Every nest of ramps, broadcasts, sums,
products by constants, and divisions and remainders that fall on digit boundaries has exactly one such form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Monomial = tuple[str, ...]
Poly = tuple[tuple[Monomial, int], ...]
"""A polynomial: sorted pairs of a monomial (sorted symbols) and its coefficient, which is not 0."""
Digit = tuple[int, Poly]
"""Extent and stride."""

ZERO: Poly = ()


def number(value: int) -> Poly:
    """The constant polynomial."""
    return (((), value),) if value else ZERO


def symbol(name: str) -> Poly:
    """The polynomial of one symbol."""
    return (((name,), 1),)


@lru_cache(maxsize=1 << 14)
def plus(p: Poly, q: Poly, scale: int = 1) -> Poly:
    """p + scale * q."""
    if not q or not scale:
        return p
    total = dict(p)
    for monomial, coefficient in q:
        total[monomial] = total.get(monomial, 0) + scale * coefficient
    return tuple(sorted((m, c) for m, c in total.items() if c))


@lru_cache(maxsize=1 << 14)
def times(p: Poly, q: Poly) -> Poly:
    """p * q."""
    total: dict[Monomial, int] = {}
    for m, a in p:
        for n, b in q:
            key = tuple(sorted(m + n))
            total[key] = total.get(key, 0) + a * b
    return tuple(sorted((m, c) for m, c in total.items() if c))


def value_of(p: Poly) -> int | None:
    """The value of a constant polynomial, else None."""
    if not p:
        return 0
    return p[0][1] if len(p) == 1 and p[0][0] == () else None


def evaluate(p: Poly, symbols: dict[str, int]) -> int:
    """The value of a polynomial."""
    total = 0
    for monomial, coefficient in p:
        for name in monomial:
            coefficient *= symbols[name]
        total += coefficient
    return total


@dataclass(frozen=True, slots=True)
class Address:
    """Base and digits, innermost first, none of extent 1, merged where one digit continues another."""

    base: Poly
    digits: tuple[Digit, ...] = ()

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        count = 1
        for extent, _ in self.digits:
            count *= extent
        return count

    def values(self, symbols: dict[str, int]) -> list[int]:
        """The address of each lane, given the symbols."""
        found = [evaluate(self.base, symbols)]
        for extent, stride in self.digits:
            step = evaluate(stride, symbols)
            found = [k * step + x for k in range(extent) for x in found]
        return found

    def rows(self) -> tuple[Poly, ...]:
        """The address of each lane."""
        return _rows(self)

    def picked(self, lanes: tuple[int, ...]) -> Address | None:
        """These lanes, in this order; None if they are not a mixed-radix counter."""
        return _picked(self, lanes)

    def repeated(self, count: int, stride: Poly = ZERO) -> Address:
        """``count`` copies, each ``stride`` after the one before."""
        return address(self.base, (*self.digits, (count, stride)))

    def __add__(self, other: Address) -> Address | None:
        both = refined(self.digits, other.digits)
        if both is None:
            return None
        return address(plus(self.base, other.base), [(n, plus(s, t)) for n, s, t in both])

    def scaled(self, factor: Poly) -> Address:
        """Every address times ``factor``."""
        return address(times(self.base, factor), [(n, times(s, factor)) for n, s in self.digits])

    def divided(self, by: int) -> tuple[Address, Address] | None:
        """Quotient and remainder, rounded down; None unless each digit lies wholly in one of them."""
        if by <= 0 or any(c % by for _, c in self.base):
            return None
        high: list[Digit] = []
        low: list[Digit] = []
        reach = 0
        for extent, stride in _split_at(self.digits, by):
            if all(c % by == 0 for _, c in stride):
                high.append((extent, tuple((m, c // by) for m, c in stride)))
                low.append((extent, ZERO))
                continue
            step = value_of(stride)
            if step is None or step < 0:
                return None
            reach += (extent - 1) * step
            high.append((extent, ZERO))
            low.append((extent, stride))
        if reach >= by:
            return None
        return address(tuple((m, c // by) for m, c in self.base), high), address(ZERO, low)

    def part(self, start: int, width: int, count: int = 1, step: str = "") -> Address | None:
        """Lanes start to start + width; with a symbol ``step`` in [0, count), those ``width * step`` lanes further.

        None if the parts do not fall on digit boundaries.
        """
        if len(self.digits) <= 1:
            stride = self.digits[0][1] if self.digits else ZERO
            base = plus(self.base, stride, start)
            base = plus(base, times(stride, symbol(step)), width) if step else base
            return address(base, [(width, stride)])
        if count == 1:
            return from_rows(self.rows()[start : start + width]) if self.lanes <= _MOST else None
        inner: list[Digit] = []
        left = width
        for extent, stride in self.digits:
            if left > 1 and left % extent == 0:
                inner.append((extent, stride))
                left //= extent
                continue
            if start or left * count > extent:
                return None
            stepping = times(stride, number(left))  # all parts lie along this digit
            return address(plus(self.base, times(stepping, symbol(step))), [*inner, (left, stride)])
        return None

    def __str__(self) -> str:
        digits = ", ".join(f"{n}:{text(s)}" for n, s in self.digits)
        return f"({text(self.base)}; {digits})" if digits else f"({text(self.base)})"


@lru_cache(maxsize=1 << 10)
def _rows(a: Address) -> tuple[Poly, ...]:
    found: tuple[Poly, ...] = (a.base,)
    for extent, stride in a.digits:
        steps = [times(stride, number(k)) for k in range(extent)]
        found = tuple(plus(x, step) for step in steps for x in found)
    return found


@lru_cache(maxsize=1 << 12)
def _picked(a: Address, lanes: tuple[int, ...]) -> Address | None:
    rows = a.rows()
    return from_rows([rows[lane] for lane in lanes])


_MOST = 4096
"""The most lanes that are listed one by one."""


def address(base: Poly, digits: Sequence[Digit] = ()) -> Address:
    """The normal form of a base and digits."""
    merged: list[Digit] = []
    for extent, stride in digits:
        if extent == 1:
            continue
        if merged and stride == times(merged[-1][1], number(merged[-1][0])):
            merged[-1] = (merged[-1][0] * extent, merged[-1][1])
        else:
            merged.append((extent, stride))
    return Address(base, tuple(merged))


def refined(a: Sequence[Digit], b: Sequence[Digit]) -> list[tuple[int, Poly, Poly]] | None:
    """Common digits of two counters with equally many lanes; None if their boundaries cross."""
    found: list[tuple[int, Poly, Poly]] = []
    left, right = list(reversed(a)), list(reversed(b))
    while left and right:
        (m, s), (n, t) = left.pop(), right.pop()
        least = min(m, n)
        if max(m, n) % least:
            return None
        found.append((least, s, t))
        if m > least:
            left.append((m // least, times(s, number(least))))
        if n > least:
            right.append((n // least, times(t, number(least))))
    return None if left or right else found


def _split_at(digits: Sequence[Digit], by: int) -> list[Digit]:
    """Digits, with those that pass ``by`` cut into a part below and a part that steps by it."""
    found: list[Digit] = []
    for extent, stride in digits:
        step = value_of(stride)
        if step and 0 < step < by and by % step == 0 and extent * step > by and extent % (by // step) == 0:
            found += [(by // step, stride), (extent // (by // step), number(by))]
        else:
            found.append((extent, stride))
    return found


def from_rows(rows: Sequence[Poly]) -> Address | None:
    """The address with these lanes, or None if they are not a mixed-radix counter."""
    digits: list[Digit] = []
    while len(rows) > 1:
        stride = plus(rows[1], rows[0], -1)
        extent = 1
        while extent < len(rows) and rows[extent] == plus(rows[0], stride, extent):
            extent += 1
        while len(rows) % extent or not _is_periodic(rows, extent, stride):
            extent -= 1
        if extent == 1:
            return None
        digits.append((extent, stride))
        rows = rows[::extent]
    return address(rows[0], digits)


def _is_periodic(rows: Sequence[Poly], extent: int, stride: Poly) -> bool:
    return all(
        rows[at + k] == plus(rows[at], stride, k) for at in range(0, len(rows), extent) for k in range(1, extent)
    )


def text(p: Poly) -> str:
    """A polynomial as a reader writes it."""
    parts = []
    for monomial, coefficient in sorted(p, key=lambda pair: (not pair[0], pair[0])):
        names = "·".join(monomial)
        parts.append(f"{coefficient}" if not names else names if coefficient == 1 else f"{coefficient}·{names}")
    return " + ".join(parts) or "0"
