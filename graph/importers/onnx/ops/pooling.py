"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.ops.convolution import OpenPairs, listed, padding_of
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import concrete
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.creation import full
from taskmap.graph.ops.gather import checked
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.pooling import max_pool
from taskmap.graph.ops.rearrange import constant_pad
from taskmap.graph.ops.reductions import amax, mean, vector_norm
from taskmap.graph.ops.scatter import Place, scattered
from taskmap.graph.ops.views import reshape, slice_
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import (
    cast,
    ceil_div,
    compare,
    const,
    eq,
    index,
    load,
    maximum,
    minimum,
    product,
    reduce,
    select,
    static_size,
    unary,
)
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.types import boolean, compute_type, i64


class Pool:
    """The windows of a pooling operator: dimension d has ``out[d]`` windows, which start at o * stride - before."""

    def __init__(self, call: OnnxCall, x: Node) -> None:
        self.rank = len(x.shape) - 2
        kernel = call.required("kernel_shape")
        if self.rank < 1 or len(kernel) != self.rank or any(k < 1 for k in kernel):
            raise call.error(f"a window {kernel} over a tensor of rank {len(x.shape)}")
        self.kernel = [int(k) for k in kernel]
        self.strides = listed(call, "strides", self.rank, 1)
        self.dilations = listed(call, "dilations", self.rank, 1)
        self.sizes = x.shape[2:]
        self.pairs: OpenPairs = padding_of(call, self.sizes, self.kernel, self.strides, self.dilations)
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True)]
        most = [max((static_size(p) or 0 for p in pair), default=0) for pair in self.pairs]
        if any(m >= span for m, span in zip(most, spans, strict=True) if m > 0):
            raise call.error(f"a padding of {list(self.pairs)} around windows of {spans}", "some windows lie outside.")
        self.ceil = bool(call.attr("ceil_mode", 0))
        self.out = [self._positions(call, d) for d in range(self.rank)]

    def _positions(self, call: OnnxCall, d: int) -> Dim:
        before, after = self.pairs[d]
        span = self.dilations[d] * (self.kernel[d] - 1) + 1
        stride, size = self.strides[d], self.sizes[d]
        known = static_size(size)
        if known is None:
            padded = index(size) + before + after
            call.at_least(padded, span)
            if not self.ceil:
                return (padded - span) // stride + 1
            # No window starts beyond the last element.
            return minimum(ceil_div(padded - span, stride), (index(size) + before - 1) // stride) + 1
        before, after = _whole(before), _whole(after)
        room = known + before + after - span
        if room < 0:
            raise call.error(f"a window of {span} elements does not fit into {known + before + after}")
        positions = (-(-room // stride) if self.ceil else room // stride) + 1
        if self.ceil and (positions - 1) * stride >= known + before:
            positions -= 1
        return positions

    def tap(self, o: Expr, k: Expr, d: int) -> Expr:
        """The position of tap k of window o."""
        return o * self.strides[d] + k * self.dilations[d] - self.pairs[d][0]

    def read(self, windows: Sequence[Expr], taps: Sequence[Expr]) -> tuple[Expr, list[Expr]]:
        """The condition that taps of windows are inside, and positions to read, clamped so that they always are."""
        inside: Expr = const(True, boolean)
        place: list[Expr] = []
        for d, (o, k) in enumerate(zip(windows, taps, strict=True)):
            position = self.tap(o, k, d)
            inside = inside & compare("ge", position, 0) & compare("lt", position, self.sizes[d])
            place.append(minimum(maximum(position, 0), index(self.sizes[d]) - 1))
        return inside, place


def _whole(padding: Dim) -> int:
    known = static_size(padding)
    assert known is not None  # the size is known
    return known


@lowering("MaxPool")
def _max_pool(call: OnnxCall) -> Any:
    x = call.node(0)
    pool = Pool(call, x)
    padding = _symmetric(pool)
    if padding is not None:
        value, place = max_pool(x, pool.rank, pool.kernel, pool.strides, padding, pool.dilations, pool.ceil)
        if not call.wants(1):
            return value
        return [value, _flat_places(call, x, place)]
    value = _windows(x, pool, "max", lambda e: e, _lowest(x))
    if not call.wants(1):
        return value
    return [value, _flat_places(call, x, _places(x, value, pool))]


def _symmetric(pool: Pool) -> list[int] | None:
    """The padding of each dimension if both sides have the same, at most half a window; else None."""
    known = [(static_size(a), static_size(b)) for a, b in pool.pairs]
    if pool.ceil and any(static_size(n) is None for n in pool.sizes):
        return None
    if any(a is None or a != b or 2 * a > k for (a, b), k in zip(known, pool.kernel, strict=True)):
        return None
    return [a for a, _ in known if a is not None]


def _lowest(x: Node) -> float:
    if x.dtype.is_float:
        return -float("inf")
    return 0 if x.dtype.kind == "u" else -(1 << (x.dtype.bits - 1))


def _windows(x: Node, pool: Pool, kind: str, prepare: Any, outside: float) -> Node:
    """Each window reduced by ``kind``; elements outside of x count as ``outside``."""
    wide = compute_type(x.dtype)

    def element(f: Buffer) -> Any:
        def at(*axes: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(pool.rank)]
            inside, place = pool.read(axes[2:], taps)
            value = select(inside, prepare(cast(load(f, (*axes[:2], *place)), wide)), const(outside, wide))
            return reduce(kind, list(zip(taps, pool.kernel, strict=True)), value)

        return at

    return define("pool", [x], (*x.shape[:2], *pool.out), element, x.dtype)


def _places(x: Node, largest: Node, pool: Pool) -> Node:
    """The row-major number, in the spatial dimensions, of the first element of each window that equals its largest."""
    wide = compute_type(x.dtype)
    area = product(pool.sizes)

    def element(f: Buffer, best: Buffer) -> Any:
        def at(*axes: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(pool.rank)]
            inside, place = pool.read(axes[2:], taps)
            value, most = cast(load(f, (*axes[:2], *place)), wide), cast(best[axes], wide)
            is_it: Expr = eq(value, most)
            if wide.is_float:
                is_it = is_it | function_call("isnan", value, dtype=boolean)
            number: Expr = index(0)
            for p, n in zip(place, pool.sizes, strict=True):
                number = number * n + p
            kept = select(inside & is_it, number, index(area) - 1)
            return reduce("min", list(zip(taps, pool.kernel, strict=True)), kept)

        return at

    return define("max_pool_places", [x, largest], largest.shape, element, i64)


def _flat_places(call: OnnxCall, x: Node, place: Node) -> Node:
    """Positions in the flat tensor, from positions in the spatial dimensions."""
    sizes = concrete(x.shape, "positions in a tensor")
    if call.attr("storage_order", 0):
        return _column_major(place, sizes)
    area = int(np.prod(sizes[2:]))

    def element(f: Buffer) -> Any:
        return lambda n, c, *out: load(f, (n, c, *out)) + (n * sizes[1] + c) * area

    return define("max_pool_positions", [place], place.shape, element, place.dtype)


def _column_major(place: Node, sizes: Sequence[int]) -> Node:
    spatial = sizes[2:]
    area = int(np.prod(spatial))

    def element(f: Buffer) -> Any:
        def at(n: Expr, c: Expr, *out: Expr) -> Expr:
            flat: Expr = load(f, (n, c, *out))
            digits: list[Expr] = []
            for size in reversed(spatial):
                digits.insert(0, flat % size)
                flat = flat // size
            number: Expr = index(0)
            for digit, size in zip(reversed(digits), reversed(spatial), strict=True):
                number = number * size + digit
            return number + (n * sizes[1] + c) * area

        return at

    return define("max_pool_positions", [place], place.shape, element, place.dtype)


@lowering("AveragePool")
def _average_pool(call: OnnxCall) -> Node:
    x = call.node(0)
    pool = Pool(call, x)
    include = bool(call.attr("count_include_pad", 0))
    wide = compute_type(x.dtype)
    total = _windows(x, pool, "sum", lambda e: e, 0.0)
    if total.dtype != wide:
        total = _wide_sum(x, pool)

    def element(f: Buffer) -> Any:
        def at(n: Expr, c: Expr, *out: Expr) -> Expr:
            count: Expr = index(1)
            for d, o in enumerate(out):
                before, after = pool.pairs[d]
                if static_size(before) == 0 and static_size(after) == 0 and not pool.ceil:
                    count = count * pool.kernel[d]
                    continue
                low, high = (index(0) - before, index(pool.sizes[d]) + after) if include else (0, index(pool.sizes[d]))
                count = count * _taps_between(
                    o * pool.strides[d] - before, pool.kernel[d], pool.dilations[d], low, high
                )
            return load(f, (n, c, *out)) / cast(maximum(count, 1), wide)

        return at

    return define("avg_pool", [total], total.shape, element, x.dtype)


def _wide_sum(x: Node, pool: Pool) -> Node:
    return _windows(to_dtype(x, compute_type(x.dtype)), pool, "sum", lambda e: e, 0.0)


def _taps_between(start: Expr, kernel: int, step: int, low: Dim, high: Expr) -> Expr:
    """The number of start, start + step, ... (``kernel`` numbers) in [low, high)."""
    first = maximum((index(low) - start + (step - 1)) // step, 0)
    last = minimum((high - 1 - start) // step, kernel - 1)
    return maximum(last - first + 1, 0)


@lowering("LpPool")
def _lp_pool(call: OnnxCall) -> Node:
    x = call.node(0)
    pool = Pool(call, x)
    p = float(call.attr("p", 2))

    def power(e: Expr) -> Expr:
        a = unary("abs", e)
        return a * a if p == 2 else a if p == 1 else function_call("pow", a, const(p, a.dtype))

    total = _windows(x, pool, "sum", power, 0.0)
    return pointwise("lp_pool", (total,), lambda s: _root(s, p), x.dtype)


def _root(s: Expr, p: float) -> Expr:
    return function_call("sqrt", s) if p == 2 else s if p == 1 else function_call("pow", s, const(1 / p, s.dtype))


def _spatial(call: OnnxCall) -> tuple[int, ...]:
    rank = len(call.node(0).shape)
    if rank < 3:
        raise call.error(f"its input has {rank} dimensions", "it has none besides the batch and the channels.")
    return tuple(range(2, rank))


@lowering("GlobalAveragePool")
def _global_average(call: OnnxCall) -> Node:
    return mean(call.node(0), _spatial(call), True)


@lowering("GlobalMaxPool")
def _global_max(call: OnnxCall) -> Node:
    return amax(call.node(0), _spatial(call), True)


@lowering("GlobalLpPool")
def _global_lp(call: OnnxCall) -> Node:
    return vector_norm(call.node(0), call.attr("p", 2), _spatial(call), True)


@lowering("MaxUnpool")
def _max_unpool(call: OnnxCall) -> Any:
    x = call.tensor(0)
    sizes = concrete(x.shape, "MaxUnpool")
    rank = len(sizes) - 2
    kernel = [int(k) for k in call.required("kernel_shape")]
    strides = listed(call, "strides", rank, 1)
    pads = call.attr("pads") or [0] * (2 * rank)
    inferred = [*sizes[:2]] + [
        (n - 1) * s - (pads[d] + pads[d + rank]) + k
        for d, (n, s, k) in enumerate(zip(sizes[2:], strides, kernel, strict=True))
    ]
    shape = call.ints(2) if call.has(2) else inferred

    if len(shape) != len(inferred) or min([*inferred, *shape]) < 1:
        raise call.error(f"a result of shape {shape}")
    count = math.prod(inferred)

    def place(values: Buffer, places: Buffer) -> Place:
        return lambda *r: ([checked(load(places, r), count)], load(values, r))

    values = call.node(0)
    flat = full([count], 0, values.dtype)
    made = reshape(scattered("max_unpool", "last", flat, call.nodes()[:2], sizes, place), inferred)
    for d, (a, b) in enumerate(zip(inferred, shape, strict=True)):
        made = slice_(made, d, 0, b) if b < a else made
    border = [e for a, b in reversed(list(zip(inferred, shape, strict=True))) for e in (0, max(b - a, 0))]
    return constant_pad(made, border, 0) if any(border) else made
