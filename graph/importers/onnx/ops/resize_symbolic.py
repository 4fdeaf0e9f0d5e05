"""Resizing from or to symbolic sizes: source positions and weights are computed where they are used.

Source of the formulas: the ONNX operator specification, Resize; Keys (1981) for cubic weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from taskmap.graph.build import define, reindex, same_dim
from taskmap.graph.importers.onnx.ops.resize_style import Style
from taskmap.graph.importers.onnx.read.assumptions import decides
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.graph.ops.resample import upsample_linear
from taskmap.ir.construct import call as function
from taskmap.ir.construct import cast, compare, const, index, load, maximum, minimum, select, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import compute_type, f32, f64, i64


@dataclass(frozen=True, slots=True)
class OpenAxis:
    """One dimension: ``size`` elements become ``target``; ``scale`` is their quotient if the model gives one."""

    size: Dim
    target: Dim
    scale: float | None = None


def scaled(size: Dim, scale: float) -> Dim:
    """The largest integer not above ``size`` * ``scale``, in exact arithmetic."""
    factor = Fraction(scale)
    return size * factor.numerator // factor.denominator if factor.denominator > 1 else size * factor.numerator


def resized_open(call: OnnxCall, x: Node, axes: Mapping[int, OpenAxis], style: Style) -> Node:
    """``x`` resized along ``axes``. Raises SizeDecidesError for modes that need the sizes."""
    changed = {d: a for d, a in axes.items() if not same_dim(a.size, a.target)}
    plain = style.transform in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    if style.antialias or style.exclude_outside or not plain:
        sizes = [n for a in changed.values() for n in (a.size, a.target)]
        raise decides(f"{call.op} by {style.transform}{' with antialiasing' if style.antialias else ''}", sizes)
    for a in changed.values():
        call.at_least(a.target, 1)
    together = _linear(call, x, changed, style)
    if together is not None:
        return together
    result = x
    for d, a in changed.items():
        result = _nearest(result, d, a, style) if style.mode == "nearest" else _weighted(result, d, a, style)
    return result if result.dtype == x.dtype else to_dtype(result, x.dtype)


def _linear(call: OnnxCall, x: Node, changed: Mapping[int, OpenAxis], style: Style) -> Node | None:
    """Linear interpolation of all trailing dimensions at once, in the common cases; else None."""
    rank, first = len(x.shape), min(changed, default=0)
    if style.mode != "linear" or not x.dtype.is_float or not changed or first < 2 or rank - first > 3:
        return None
    if style.transform == "asymmetric":
        return None
    whole = [changed[d] if d in changed else OpenAxis(x.shape[d], x.shape[d]) for d in range(first, rank)]
    if style.transform == "pytorch_half_pixel" and not all(
        call.holds("gt", a.target, 1, "Resize by pytorch_half_pixel") for a in changed.values()
    ):
        return None
    align = style.transform == "align_corners"
    if align and any(a.scale is not None for a in changed.values()):
        return None
    return upsample_linear(x, [a.target for a in whole], align, [a.scale for a in whole])


def _position(o: Expr, a: OpenAxis, style: Style) -> Expr:
    """The source position of element ``o`` of the result, in f64."""
    place, size, target = (cast(index(v), f64) for v in (o, a.size, a.target))
    half = const(0.5, f64)
    scale = target / size if a.scale is None else const(a.scale, f64)
    if style.transform == "align_corners":
        last = scale * size - const(1.0, f64) if a.scale is not None else target - const(1.0, f64)
        share = place * (size - const(1.0, f64)) / select(compare("gt", index(a.target), 1), last, const(1.0, f64))
        return select(compare("gt", index(a.target), 1), share, const(0.0, f64))
    if style.transform == "asymmetric":
        return place / scale
    middle = (place + half) / scale - half
    if style.transform == "pytorch_half_pixel":
        return select(compare("gt", index(a.target), 1), middle, const(0.0, f64))
    return middle


def _whole_factor(a: OpenAxis, style: Style) -> int | None:
    """The number of times that every element is repeated, or None if that is not uniform."""
    if a.scale is None or a.scale != int(a.scale):
        return None
    if style.transform == "asymmetric" and style.nearest == "floor":
        return int(a.scale)
    middles = style.transform in ("half_pixel", "pytorch_half_pixel")
    return int(a.scale) if middles and style.nearest.startswith("round") else None


def _nearest(x: Node, axis: int, a: OpenAxis, style: Style) -> Node:
    factor = _whole_factor(a, style)

    def place(o: Expr) -> Expr:
        if factor is not None:
            return o // factor
        position = _position(o, a, style)
        half = const(0.5, f64)
        rounded = {
            "floor": lambda: function("floor", position),
            "ceil": lambda: function("ceil", position),
            "round_prefer_floor": lambda: function("ceil", position - half),
            "round_prefer_ceil": lambda: function("floor", position + half),
        }[style.nearest]()
        return minimum(maximum(cast(rounded, i64), 0), index(a.size) - 1)

    def source(*axes: Expr) -> list[ExprLike]:
        return [place(i) if d == axis else i for d, i in enumerate(axes)]

    return reindex("resize", x, _shape(x, axis, a), source)


def _shape(x: Node, axis: int, a: OpenAxis) -> list[Dim]:
    return [a.target if d == axis else n for d, n in enumerate(x.shape)]


def _weighted(x: Node, axis: int, a: OpenAxis, style: Style) -> Node:
    wide = compute_type(x.dtype) if x.dtype.is_float else f32

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            position = _position(axes[axis], a, style)
            low = function("floor", position)
            base = cast(low, i64)
            total: Expr | None = None
            for tap, weight in _weights(position - low, style):
                here = minimum(maximum(base + tap, 0), index(a.size) - 1)
                value = cast(load(f, [here if d == axis else i for d, i in enumerate(axes)]), wide)
                term = value * cast(cast(weight, f32), wide)
                total = term if total is None else total + term
            assert total is not None
            return total

        return at

    return define("resize", [x], _shape(x, axis, a), element, wide)


def _weights(share: Expr, style: Style) -> Sequence[tuple[int, Expr]]:
    """The taps around a position ``share`` after element 0, with their weights."""
    one = const(1.0, f64)
    if style.mode == "linear":
        return [(0, one - share), (1, share)]
    a = style.cubic

    def near(d: Expr) -> Expr:
        return (const(a + 2, f64) * d - const(a + 3, f64)) * d * d + one

    def far(d: Expr) -> Expr:
        return ((const(a, f64) * d - const(5 * a, f64)) * d + const(8 * a, f64)) * d - const(4 * a, f64)

    return [(-1, far(share + one)), (0, near(share)), (1, near(one - share)), (2, far(const(2.0, f64) - share))]


def all_known(axes: Mapping[int, OpenAxis]) -> bool:
    """True if no size among them is symbolic."""
    return all(static_size(n) is not None for a in axes.values() for n in (a.size, a.target))
