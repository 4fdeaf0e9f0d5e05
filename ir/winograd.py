"""Winograd's minimal filtering F(m, 3) in exact rationals: m outputs of a filter of 3 taps by m + 2 products.

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]              g: 3 taps, d: m + 2 inputs
    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A       the same in two dimensions: (m + 2)² products for m² outputs

The construction evaluates polynomials at m + 1 points and at infinity (Toom and Cook). Sources: Winograd, "Arithmetic
Complexity of Computations" (1980); Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016). The
points of F(4, 3) are zero and ±c, ±1/c instead of the usual zero, ±1, ±2, because their rounding error is smaller: Alam
et al., "Winograd Convolution for Deep Neural Networks: Efficient Point Selection" (2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from taskmap.ir.construct import cast, const, eq, index, load, minimum, select, static_size
from taskmap.ir.nodes import Binary, Buffer, Dim, Expr
from taskmap.ir.types import f32, f64

TAPS = 3
"""Taps of the filter, per dimension."""
ATTRIBUTE = "winograd"
"""The attribute of a convolution of transformed weights: its form's outputs per dimension."""

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True, slots=True)
class WinogradForm:
    """F(outputs, 3). ``to_outputs``: Aᵀ [outputs, inputs]. ``of_taps``: G [inputs, 3]. ``of_inputs``: Bᵀ [inputs,
    inputs]. All elements of Aᵀ and Bᵀ are f32 numbers, so applying them rounds results only."""

    outputs: int
    to_outputs: Matrix
    of_taps: Matrix
    of_inputs: Matrix

    @property
    def inputs(self) -> int:
        """Inputs of a tile, and its products, per dimension."""
        return self.outputs + TAPS - 1

    @property
    def taps_again(self) -> tuple[tuple[tuple[int, Fraction], ...], ...]:
        """The taps from G g: for each tap two positions with their coefficients. The first and the last tap have a
        position of their own (the points zero and infinity); the middle one is a difference at a point and its
        negative."""
        zero, plus, minus = self.of_taps[:3]
        odd = 1 / (plus[1] - minus[1] * plus[0] / minus[0])
        return (
            ((0, 1 / zero[0]), (0, Fraction(0))),
            ((1, odd), (2, -odd * plus[0] / minus[0])),
            ((self.inputs - 1, 1 / self.of_taps[-1][-1]), (0, Fraction(0))),
        )

    def __str__(self) -> str:
        return f"F({self.outputs}x{self.outputs})"


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The ``form`` for a convolution, in panels of ``width`` output channels, and the reason; None: direct."""

    form: WinogradForm | None
    width: int
    reason: str


def winograd(positive: Sequence[Fraction]) -> WinogradForm:
    """F(m, 3) at zero, the ``positive`` points, their negatives, and infinity; m is twice the number of points.

    Each row of Bᵀ and each column of Aᵀ is scaled to small integers, then by a power of two to numbers near 1; G takes
    the inverse factors.
    """
    points = [Fraction(0), *(sign * p for p in positive for sign in (1, -1))]
    outputs, inputs = len(points) - 1, len(points) + 1
    to_outputs = [[p**j for p in points] + [Fraction(j == outputs - 1)] for j in range(outputs)]
    of_taps, of_inputs = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = math.prod((p - q for q in others), start=Fraction(1))
        of_taps.append([p**k / scale for k in range(TAPS)])
        of_inputs.append([*_with_roots(others), Fraction(0)])
    of_taps.append([Fraction(0)] * (TAPS - 1) + [Fraction(1)])
    of_inputs.append(_with_roots(points))
    for i in range(inputs):
        row, column = _unit(of_inputs[i]), _unit([line[i] for line in to_outputs])
        of_inputs[i] = [x / row for x in of_inputs[i]]
        for line in to_outputs:
            line[i] /= column
        of_taps[i] = [x * row * column for x in of_taps[i]]
    return WinogradForm(outputs, _frozen(to_outputs), _frozen(of_taps), _frozen(of_inputs))


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of the product of (x - root), lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        found = [low - root * high for low, high in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def _unit(values: Sequence[Fraction]) -> Fraction:
    """The number by which ``values`` become integers, divided by a power of two to at most 1 in magnitude."""
    denominator = math.lcm(*(x.denominator for x in values))
    largest = max(abs(x) for x in values) * denominator
    return Fraction(1 << (math.ceil(largest) - 1).bit_length(), denominator)


def _frozen(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))


FORMS: Mapping[int, WinogradForm] = MappingProxyType(
    {2: winograd([Fraction(1)]), 4: winograd([Fraction(2, 3), Fraction(3, 2)])}
)
"""The forms that kernels use, by their outputs."""


def weight_shape(form: WinogradForm, channels: int, out_channels: int, width: int) -> tuple[int, ...]:
    """The shape of transformed weights: panels of ``width`` output channels, (G g Gᵀ)'s rows and columns, input
    channels, and a panel's channels. Zeros fill the last panel."""
    return (-(-out_channels // width), form.inputs, form.inputs, channels, width)


def fills_panels(out_channels: Dim, width: int) -> bool:
    """True if panels of ``width`` hold output channels alone: as many as a multiple of it, or symbolic panels of it."""
    if isinstance(out_channels, Binary):
        return out_channels.op == "mul" and width in (static_size(out_channels.a), static_size(out_channels.b))
    size = static_size(out_channels)
    return size is not None and size % width == 0


def weight_again(
    form: WinogradForm, transformed: Buffer, out_channel: Expr, channel: Expr, taps: Sequence[Expr]
) -> Expr:
    """The weight that transformed weights stand for, at ``taps`` (row, column): what a convolution sums, as its
    definition needs it. Kernels never evaluate it."""
    width = transformed.shape[-1]
    parts = [[_part(form, tap, part) for part in range(2)] for tap in taps]
    total: Expr | None = None
    for row, by_row in parts[0]:
        for column, by_column in parts[1]:
            value = load(transformed, (out_channel // width, row, column, channel, out_channel % width))
            term = value * (by_row * by_column)
            total = term if total is None else total + term
    assert total is not None
    return total


def _part(form: WinogradForm, tap: Expr, part: int) -> tuple[Expr, Expr]:
    """The position, and the coefficient, of one part of a tap."""
    places, factors = zip(*(pairs[part] for pairs in form.taps_again), strict=True)

    def by_tap(first: Expr, middle: Expr, last: Expr) -> Expr:
        return select(eq(tap, 0), first, select(eq(tap, 1), middle, last))

    return by_tap(*map(index, places)), by_tap(*(const(float(x), f32) for x in factors))


def transformed_weight(form: WinogradForm, weight: Buffer, width: int, place: Sequence[Expr]) -> Expr:
    """The element of transformed weights at ``place``, in the order of ``weight_shape``: G g Gᵀ for the filter g of
    ``weight`` [output channels, channels, 3, 3], computed in f64."""
    panel, row, column, channel, lane = place
    out_channel, count = panel * width + lane, weight.shape[0]
    full = fills_panels(count, width)
    held = out_channel if full and static_size(count) in (None, width) else minimum(out_channel, index(count) - 1)
    taps = [[cast(load(weight, (held, channel, ky, kx)), f64) for kx in range(TAPS)] for ky in range(TAPS)]
    value = cast(taps_transformed(form, row, column, taps), f32)
    return value if full else select(out_channel < count, value, const(0, f32))


def taps_transformed(form: WinogradForm, row: Expr, column: Expr, tap: Sequence[Sequence[Expr]]) -> Expr:
    """The element (row, column) of G g Gᵀ for the filter g whose elements are ``tap``, in their type."""
    total: Expr | None = None
    for ky in range(TAPS):
        along = _chosen(form, row, ky, tap[0][0])
        inner: Expr | None = None
        for kx in range(TAPS):
            term = tap[ky][kx] * _chosen(form, column, kx, tap[0][0])
            inner = term if inner is None else inner + term
        assert inner is not None
        total = along * inner if total is None else total + along * inner
    assert total is not None
    return total


def _chosen(form: WinogradForm, position: Expr, tap: int, like: Expr) -> Expr:
    """G[position, tap] for a position that is not known."""
    chosen: Expr = const(float(form.of_taps[-1][tap]), like.dtype)
    for at in range(form.inputs - 2, -1, -1):
        chosen = select(eq(position, at), const(float(form.of_taps[at][tap]), like.dtype), chosen)
    return chosen
