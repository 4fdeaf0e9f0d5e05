"""Resizing: each dimension by a table of source positions and weights, which its sizes and scale determine.

Source of the formulas: the ONNX operator specification, Resize; Keys (1981) for cubic weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.ops.resize_style import Style
from taskmap.graph.importers.onnx.ops.resize_symbolic import OpenAxis, all_known, resized_open, scaled
from taskmap.graph.importers.onnx.read.assumptions import decides
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import constant_node
from taskmap.graph.nodes import Node
from taskmap.graph.ops.gather import wrapped
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.graph.ops.resample import upsample_linear, upsample_nearest
from taskmap.ir.construct import cast, const, eq, reduce, select, static_size
from taskmap.ir.errors import ImportGraphError
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.types import boolean, compute_type, f32

Array = NDArray[Any]
LARGEST = 1 << 24
"""The largest size of a resized dimension."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension: ``size`` elements become ``target``; ``scale`` is their quotient as given by the model."""

    size: int
    target: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if self.target > LARGEST or self.scale * LARGEST < 1:
            raise ImportGraphError(f"a dimension of {self.size} elements is resized to {self.target}")


def _position(o: Array, a: Axis, style: Style) -> Array:
    """The source positions of the elements o of the result."""
    transform = style.transform
    if transform == "align_corners":
        return o * (a.size - 1) / (a.scale * a.size - 1) if a.target > 1 else np.zeros_like(o)
    if transform == "asymmetric":
        return o / a.scale
    if transform == "pytorch_half_pixel":
        return (o + 0.5) / a.scale - 0.5 if a.target > 1 else np.zeros_like(o)
    if transform == "tf_half_pixel_for_nn":
        return (o + 0.5) / a.scale
    if transform == "tf_crop_and_resize":
        if a.target > 1:
            return a.start * (a.size - 1) + o * (a.end - a.start) * (a.size - 1) / (a.target - 1)
        return np.full_like(o, 0.5 * (a.start + a.end) * (a.size - 1))
    if transform == "half_pixel_symmetric":
        adjustment = a.target / (a.scale * a.size)
        center = a.size / 2
        return center * (1 - adjustment) + (o + 0.5) / a.scale - 0.5
    return (o + 0.5) / a.scale - 0.5


def table(a: Axis, style: Style) -> tuple[Array, Array]:
    """For each element of the result its source positions [target, k] and their weights [target, k]."""
    place = _position(np.arange(a.target, dtype=np.float64), a, style)
    if style.mode == "nearest":
        low, high = np.floor(place), np.ceil(place)
        rule = {
            "floor": low,
            "ceil": high,
            "round_prefer_floor": np.ceil(place - 0.5),
            "round_prefer_ceil": np.floor(place + 0.5),
        }[style.nearest]
        return np.clip(rule, 0, a.size - 1).astype(np.int64)[:, None], np.ones((a.target, 1))
    reach = 1 if style.mode == "linear" else 2
    stretch = max(1.0, 1.0 / a.scale) if style.antialias else 1.0
    span = math.ceil(reach * stretch)
    base = np.floor(place).astype(np.int64)
    taps = base[:, None] + np.arange(1 - span, span + 1)
    distance = np.abs(taps - place[:, None]) / stretch
    weights = np.maximum(1 - distance, 0) if style.mode == "linear" else _cubic(distance, style.cubic)
    outside = (taps < 0) | (taps >= a.size)
    if style.exclude_outside:
        weights = np.where(outside, 0.0, weights)
    if style.exclude_outside or style.antialias:
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return np.clip(taps, 0, a.size - 1), weights


def _cubic(d: Array, a: float) -> Array:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def along_axis(x: Node, axis: int, a: Axis, style: Style) -> Node:
    """``x`` resized along one dimension."""
    places, weights = table(a, style)
    index = constant_node(np.ascontiguousarray(places), 7)
    shape = [a.target if d == axis else n for d, n in enumerate(x.shape)]
    if style.mode == "nearest":

        def nearest(f: Buffer, p: Buffer) -> Callable[..., Any]:
            return lambda *axes: f[
                tuple(wrapped(p[axes[axis], 0], a.size) if d == axis else i for d, i in enumerate(axes))
            ]

        return define("resize", [x, index], shape, nearest)
    share = constant_node(np.ascontiguousarray(weights.astype(np.float32)), 1)
    wide = compute_type(x.dtype) if x.dtype.is_float else f32

    def weighted(f: Buffer, p: Buffer, w: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            k = Var("k")
            here = wrapped(p[axes[axis], k], a.size)
            value = cast(f[tuple(here if d == axis else i for d, i in enumerate(axes))], wide)
            return reduce("sum", [(k, places.shape[1])], value * cast(w[axes[axis], k], wide))

        return at

    return define("resize", [x, index, share], shape, weighted, wide)


def resized(call: OnnxCall, x: Node, axes: dict[int, Axis], style: Style) -> Node:
    """``x`` resized along ``axes``."""
    result = _common(x, axes, style)
    if result is None:
        result = x
        for axis, a in axes.items():
            if a.size != a.target or style.transform == "tf_crop_and_resize":
                result = along_axis(result, axis, a, style)
        if result.dtype != x.dtype:
            result = to_dtype(result, x.dtype)
    if style.transform == "tf_crop_and_resize":
        for axis, a in axes.items():
            result = _outside(result, axis, a, style)
    return result


def _common(x: Node, axes: dict[int, Axis], style: Style) -> Node | None:
    """The common cases, whose positions are simple expressions; None for any other."""
    changed = [d for d, a in axes.items() if a.size != a.target]
    rank = len(x.shape)
    if not changed or style.antialias:
        return None
    first = min(changed)
    trailing = range(first, rank)
    if style.mode == "nearest" and style.transform == "asymmetric" and style.nearest == "floor":
        whole = all(
            axes[d].target % axes[d].size == 0 and axes[d].scale == axes[d].target // axes[d].size for d in changed
        )
        if whole:
            return upsample_nearest(
                x, [axes[d].target if d in axes else x.shape[d] for d in trailing], [None] * len(trailing)
            )
    plain = style.transform in ("half_pixel", "pytorch_half_pixel", "align_corners")
    if style.mode == "linear" and plain and x.dtype.is_float and len(trailing) <= 3 and rank - len(trailing) >= 2:
        if style.transform == "pytorch_half_pixel" and any(axes[d].target == 1 for d in changed):
            return None
        if style.transform == "align_corners" and any(axes[d].scale * axes[d].size != axes[d].target for d in changed):
            return None
        sizes = [axes[d].target if d in axes else x.shape[d] for d in trailing]
        scales = [axes[d].scale if d in axes and axes[d].size != axes[d].target else None for d in trailing]
        return upsample_linear(x, sizes, style.transform == "align_corners", scales)
    return None


def _outside(x: Node, axis: int, a: Axis, style: Style) -> Node:
    """``x`` with elements from beyond the source replaced by the extrapolation value."""
    place = _position(np.arange(a.target, dtype=np.float64), a, style)
    beyond = (place < 0) | (place > a.size - 1)
    if not beyond.any():
        return x
    mask = constant_node(beyond, 9)
    value = const(style.extrapolation, x.dtype) if x.dtype.is_float else const(int(style.extrapolation), x.dtype)

    def element(f: Buffer, m: Buffer) -> Callable[..., Any]:
        return lambda *axes: select(eq(m[(axes[axis],)], const(True, boolean)), value, f[axes])

    return define("extrapolate", [x, mask], x.shape, element, x.dtype)


@lowering("Upsample")
def _upsample(call: OnnxCall) -> Node:
    x = call.node(0)
    scales = [float(v) for v in call.array(1).reshape(-1)] if call.version >= 9 else call.attr("scales")
    if scales is None:
        scales = [1.0, 1.0, call.required("height_scale"), call.required("width_scale")]
    mode = call.attr("mode", "nearest")
    style = Style("nearest" if mode == "nearest" else "linear", "asymmetric", "floor")
    return _either(call, x, _by_scales(call, x.shape, range(len(x.shape)), scales), style)


def _either(call: OnnxCall, x: Node, axes: dict[int, OpenAxis], style: Style) -> Node:
    """``x`` resized, by tables if all sizes are known."""
    if all_known(axes):
        return resized(call, x, {d: _closed(a) for d, a in axes.items()}, style)
    return resized_open(call, x, axes, style)


def _closed(a: OpenAxis) -> Axis:
    size, target = static_size(a.size), static_size(a.target)
    assert size is not None
    assert target is not None
    return Axis(size, target, target / size if a.scale is None else a.scale)


def _by_scales(call: OnnxCall, shape: Sequence[Dim], axes: Any, scales: Any) -> dict[int, OpenAxis]:
    axes = list(axes)
    if len(axes) != len(scales):
        raise call.error(f"{len(scales)} scales for {len(axes)} dimensions")
    if any(not 0 < s < 1 << 20 for s in scales):
        raise call.error(f"the scales {list(scales)} are not positive")
    return {d: OpenAxis(shape[d], scaled(shape[d], s), s) for d, s in zip(axes, scales, strict=True)}


@lowering("Resize", until=10)
def _resize_10(call: OnnxCall) -> Node:
    x = call.node(0)
    scales = [float(v) for v in call.array(1).reshape(-1)]
    style = Style(call.attr("mode", "nearest"), "asymmetric", "floor")
    return _either(call, x, _by_scales(call, x.shape, range(len(x.shape)), scales), style)


@lowering("Resize", since=11)
def _resize(call: OnnxCall) -> Node:
    x = call.node(0)
    given = call.attr("axes")
    axes = [call.axis(a, len(x.shape)) for a in given] if given else list(range(len(x.shape)))
    style = Style(
        call.attr("mode", "nearest"),
        call.attr("coordinate_transformation_mode", "half_pixel"),
        call.attr("nearest_mode", "round_prefer_floor"),
        call.attr("cubic_coeff_a", -0.75),
        bool(call.attr("exclude_outside", 0)),
        bool(call.attr("antialias", 0)),
        call.attr("extrapolation_value", 0.0),
    )
    known = call.array(2).reshape(-1) if call.has(2) else np.zeros(0)
    if known.size:
        wanted = _by_scales(call, x.shape, axes, [float(v) for v in known])
    else:
        wanted = _by_sizes(call, x.shape, axes, call.dims(3))
    if style.transform != "tf_crop_and_resize" or not all_known(wanted):
        return _either(call, x, wanted, style)
    roi = [float(v) for v in call.array(1).reshape(-1)]
    half = len(roi) // 2
    closed = {d: _closed(a) for d, a in wanted.items()}
    table = {
        d: Axis(a.size, a.target, a.scale, roi[axes.index(d)], roi[half + axes.index(d)]) for d, a in closed.items()
    }
    return resized(call, x, table, style)


def _by_sizes(call: OnnxCall, shape: Sequence[Dim], axes: list[int], sizes: Sequence[Dim]) -> dict[int, OpenAxis]:
    if len(sizes) != len(axes):
        raise call.error(f"{len(sizes)} sizes for {len(axes)} dimensions")
    if any(not 0 < n < 1 << 31 for n in map(static_size, sizes) if n is not None):
        raise call.error(f"the sizes {list(sizes)} are not positive")
    wanted = {d: OpenAxis(shape[d], n) for d, n in zip(axes, sizes, strict=True)}
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return wanted
    if not all_known(wanted):
        raise decides("Resize that keeps the aspect ratio", [n for a in wanted.values() for n in (a.size, a.target)])
    closed = {d: _closed(a) for d, a in wanted.items()}
    choose = min if policy == "not_larger" else max
    scale = choose(a.scale for a in closed.values())
    return {d: OpenAxis(a.size, math.floor(scale * a.size + 0.5), scale) for d, a in closed.items()}
