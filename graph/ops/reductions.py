"""Reductions over dimensions, with PyTorch's rules for result types, ties (the first wins) and NaN (it wins)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from taskmap.graph.build import define, elementwise, reduction
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import (
    as_expr,
    call,
    cast,
    compare,
    const,
    maximum,
    product,
    reduce,
    select,
    static_size,
    unary,
)
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, bf16, boolean, compute_type, f32, f64, i64, u8

Dims = int | Sequence[int] | None
LONGEST_PREFIX = 1024


def dims_of(x: Node, dim: Dims) -> tuple[int, ...]:
    """The dimensions that ``dim`` denotes, non-negative and in order; None or an empty list denotes all."""
    rank = max(len(x.shape), 1)
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(len(x.shape)))
    chosen = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(sorted({d % rank for d in chosen}))


def count(x: Node, dim: Dims) -> Dim:
    """The number of elements that are reduced to one."""
    return product([x.shape[d] for d in dims_of(x, dim)]) if x.shape else 1


def fold(
    op: str,
    x: Node,
    dim: Dims,
    keepdim: bool,
    kind: str,
    prepare: Callable[[Expr], ExprLike],
    finish: Callable[[Expr], ExprLike],
    dtype: DType,
) -> Node:
    """``finish`` of the reduction of ``prepare(x)``; for a 0-d tensor, of its one element."""
    if not x.shape:
        return elementwise(op, (x,), lambda e: finish(_alone(kind, as_expr(prepare(e)))), dtype)
    return reduction(op, x, dims_of(x, dim), keepdim, kind, prepare, finish, dtype)


def _alone(kind: str, e: Expr) -> Expr:
    """The reduction of one element. A sum begins with 0, which it stays where -0.0 is added."""
    return e + const(0, e.dtype) if kind == "sum" and e.dtype.is_float else e


def same(e: Expr) -> Expr:
    """The element, unchanged."""
    return e


def _sum_type(x: Node, dtype: DType | None) -> DType:
    return dtype or (x.dtype if x.dtype.is_float else i64)


def sum_(x: Node, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """The sum; i64 for integers and bools."""
    result = _sum_type(x, dtype)
    return fold("sum", x, dim, keepdim, "sum", lambda e: cast(e, compute_type(result)), same, result)


def prod(x: Node, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """The product; i64 for integers and bools."""
    result = _sum_type(x, dtype)
    return fold("prod", x, dim, keepdim, "prod", lambda e: cast(e, compute_type(result)), same, result)


def mean(x: Node, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """The sum divided by the number of elements; floats only."""
    result = dtype or x.dtype
    if not result.is_float:
        raise UnsupportedError(f"the mean of {result} is not defined")
    number = count(x, dim)

    def finish(total: Expr) -> Expr:
        return total / _as_float(number, total.dtype)

    return fold("mean", x, dim, keepdim, "sum", lambda e: cast(e, compute_type(result)), finish, result)


def _as_float(number: Dim, dtype: DType) -> Expr:
    return const(number, dtype) if isinstance(number, int) else cast(number, dtype)


def amax(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """The largest element; NaN if there is one."""
    return _extremum("amax", x, dim, keepdim, "any" if x.dtype.is_bool else "max")


def amin(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """The smallest element; NaN if there is one."""
    return _extremum("amin", x, dim, keepdim, "all" if x.dtype.is_bool else "min")


def _extremum(op: str, x: Node, dim: Dims, keepdim: bool, kind: str) -> Node:
    return fold(op, x, dim, keepdim, kind, lambda e: cast(e, compute_type(x.dtype)), same, x.dtype)


def any_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """True where some element is not zero; bool, or u8 for u8."""
    return _truth("any", x, dim, keepdim)


def all_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """True where no element is zero; bool, or u8 for u8."""
    return _truth("all", x, dim, keepdim)


def _truth(op: str, x: Node, dim: Dims, keepdim: bool) -> Node:
    return fold(op, x, dim, keepdim, op, lambda e: cast(e, boolean), same, u8 if x.dtype == u8 else boolean)


def argmax(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The position of the first largest element (of the first NaN if there is one) along ``dim``, or in the flat x."""
    return _position("argmax", x, dim, keepdim)


def argmin(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The position of the first smallest element (of the first NaN if there is one) along ``dim``, or in the flat x."""
    return _position("argmin", x, dim, keepdim)


def _position(op: str, x: Node, dim: int | None, keepdim: bool) -> Node:
    if not x.shape:
        return elementwise(op, (x,), lambda e: const(0, i64), i64)
    if dim is None:
        flat = _position(op, reshape(x, [product(x.shape)]), 0, False)
        return reshape(flat, [1] * len(x.shape)) if keepdim else flat
    wide = u8 if x.dtype.is_bool else compute_type(x.dtype)
    return fold(op, x, dim, keepdim, op, lambda e: cast(e, wide), same, i64)


def mean_and_variance(
    x: Node, dim: Dims, keepdim: bool, correction: float = 1, dtype: DType | None = None, wide: DType | None = None
) -> tuple[Node, Node]:
    """Mean and variance in two passes: first the mean, then the squared distances from it.

    Along rows the sum of the distances, which is the rounding error of the mean, corrects both. Equal elements then
    have exactly themselves as mean and zero variance (Chan, Golub and LeVeque, "Algorithms for computing the sample
    variance", 1983), which matters because a norm divides by next to nothing there. Other reductions would need a third
    pass.

    Both are in ``dtype`` (default: the compute type of x). The divisor is the count minus ``correction``, at least 0.
    ``wide``: a compute type whose precision and range make the correction unnecessary.
    """
    result = dtype or compute_type(x.dtype)
    inner = wide or compute_type(x.dtype)
    if not x.dtype.is_float:
        raise UnsupportedError(f"the variance of {x.dtype} is not defined")
    number = count(x, dim)
    divisor = _divisor(number, correction, compute_type(inner))
    if wide is None and _along_rows(x, dim):
        return _corrected(x, dim, keepdim, divisor, _divisor(number, 0, compute_type(inner)), result)
    center = mean(x, dim, True, inner) if wide else _mean_within_range(x, dim, compute_type(inner))
    distances = pointwise("squared_distance", (x, center), lambda a, m: (a - m) * (a - m), within=center.dtype)
    variance = fold("var", distances, dim, keepdim, "sum", same, lambda total: total / divisor, result)
    kept = center if keepdim or not x.shape else reshape(center, variance.shape)
    return to_dtype(kept, result), variance


def _statistics_type(x: Node) -> DType | None:
    """The type in which eager computes variances and deviations of f32 and bf16 on the CPU: squares of elements from
    1e19 on overflow f32. f64 holds the sum of a row of equal numbers exactly."""
    return f64 if x.dtype in (f32, bf16) else None


def _along_rows(x: Node, dim: Dims) -> bool:
    """True if the reduced dimensions are the last ones, so that each reduction covers a row."""
    dims = sorted(dims_of(x, dim))
    return bool(dims) and dims == list(range(len(x.shape) - len(dims), len(x.shape)))


def _corrected(x: Node, dim: Dims, keepdim: bool, divisor: Expr, number: Expr, result: DType) -> tuple[Node, Node]:
    first = _mean_within_range(x, dim, compute_type(x.dtype))
    distances = pointwise("distance", (x, first), lambda a, m: a - m, within=first.dtype)
    rest = mean(distances, dim, True)
    squares = sum_(pointwise("square", (distances,), lambda d: d * d), dim, True)

    def infinite(s: Expr) -> Expr:
        """True if the elements are so large that their squares overflow; the sum of the distances may overflow too."""
        return compare("eq", s, const(math.inf, s.dtype))

    def center_of(m: Expr, d: Expr, s: Expr) -> Expr:
        return select(infinite(s), m, m + d)

    def corrected(s: Expr, d: Expr) -> Expr:
        return select(infinite(s), s, maximum(s - d * d * number, const(0.0, s.dtype)) / divisor)

    center = pointwise("mean", (first, rest, squares), center_of, result, first.dtype)
    variance = pointwise("var", (squares, rest), corrected, result, first.dtype)
    if keepdim:
        return center, variance
    dims = dims_of(x, dim)
    kept = [n for d, n in enumerate(x.shape) if d not in dims]
    return reshape(center, kept), reshape(variance, kept)


def _mean_within_range(x: Node, dim: Dims, dtype: DType) -> Node:
    """The mean, with reduced dimensions kept, when the sum may overflow ``dtype``: elements are scaled by a power of
    two, which rounds only very small ones."""
    number, scale = count(x, dim), const(2.0**-24, dtype)

    def finish(total: Expr) -> Expr:
        return total / _as_float(number, dtype) * const(2.0**24, dtype)

    return fold("mean", x, dim, True, "sum", lambda e: cast(e, dtype) * scale, finish, dtype)


def _divisor(number: Dim, correction: float, dtype: DType) -> Expr:
    if isinstance(number, int):
        return const(max(0.0, number - correction), dtype)
    return maximum(cast(number, dtype) - const(correction, dtype), const(0.0, dtype))


def var(x: Node, dim: Dims = None, correction: float | None = 1, keepdim: bool = False) -> Node:
    """The variance, in two passes."""
    return var_mean(x, dim, correction, keepdim)[0]


def var_mean(x: Node, dim: Dims = None, correction: float | None = 1, keepdim: bool = False) -> tuple[Node, Node]:
    """Variance and mean."""
    chosen = 1 if correction is None else correction
    center, variance = mean_and_variance(x, dim, keepdim, chosen, x.dtype, _statistics_type(x))
    return variance, center


def std(x: Node, dim: Dims = None, correction: float | None = 1, keepdim: bool = False) -> Node:
    """The square root of the variance."""
    return std_mean(x, dim, correction, keepdim)[0]


def std_mean(x: Node, dim: Dims = None, correction: float | None = 1, keepdim: bool = False) -> tuple[Node, Node]:
    """Standard deviation and mean."""
    wide = _statistics_type(x)
    center, variance = mean_and_variance(x, dim, keepdim, 1 if correction is None else correction, wide, wide)
    return pointwise("std", (variance,), lambda v: call("sqrt", v), x.dtype, variance.dtype), to_dtype(center, x.dtype)


def logsumexp(x: Node, dim: Dims, keepdim: bool = False) -> Node:
    """log(sum(exp(x))), shifted by the maximum; an infinite maximum is not subtracted."""
    if not x.dtype.is_float:
        x = to_dtype(x, f32)
    arithmetic = compute_type(x.dtype)
    top = amax(x, dim, True)

    def shift(m: Expr) -> Expr:
        return select(call("isinf", m, dtype=boolean), const(0.0, m.dtype), m)

    powers = pointwise("exp", (x, top), lambda a, m: call("exp", a - shift(m)), arithmetic, arithmetic)
    total = sum_(powers, dim, True)
    result = pointwise("logsumexp", (total, top), lambda s, m: call("log", s) + shift(m), x.dtype, arithmetic)
    if keepdim or not x.shape:
        return result
    dims = dims_of(x, dim)
    return reshape(result, [n for d, n in enumerate(x.shape) if d not in dims])


def vector_norm(x: Node, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """The p-norm of the elements: p = 2, 1, 0 (the number of non-zeros), ±infinity, or another number.

    That of one element is its magnitude, also where the power of it exceeds the type; as in PyTorch, not along axis 0
    of a tensor without axes.
    """
    result = dtype or x.dtype
    if not result.is_float:
        raise UnsupportedError(f"the norm of {result} is not defined")
    wide = compute_type(result)
    dims = dims_of(x, dim)
    if ord != 0 and all(x.shape and static_size(x.shape[d]) == 1 for d in dims):
        magnitude = pointwise("norm", (x,), lambda e: _absolute(cast(e, wide)), result, wide)
        return magnitude if keepdim else reshape(magnitude, [n for d, n in enumerate(x.shape) if d not in dims])

    def folded(kind: str, prepare: Callable[[Expr], ExprLike], finish: Callable[[Expr], ExprLike] = same) -> Node:
        return fold("norm", x, dim, keepdim, kind, lambda e: prepare(cast(e, wide)), finish, result)

    if ord == 2:
        return folded("sum", lambda e: e * e, lambda s: call("sqrt", s))
    if ord == 1:
        return folded("sum", _absolute)
    if ord == 0:
        return folded("sum", lambda e: cast(compare("ne", e, const(0, e.dtype)), e.dtype))
    if math.isinf(ord):
        return folded("max" if ord > 0 else "min", _absolute)
    return folded(
        "sum",
        lambda e: call("pow", _absolute(e), const(ord, e.dtype)),
        lambda s: call("pow", s, const(1 / ord, s.dtype)),
    )


def _absolute(e: Expr) -> Expr:
    return unary("abs", e)


def cumsum(x: Node, dim: int, dtype: DType | None = None) -> Node:
    """Prefix sums along ``dim``, each a separate reduction; at most LONGEST_PREFIX elements."""
    return _prefixes("cumsum", "sum", 0, x, dim, dtype)


def cumprod(x: Node, dim: int, dtype: DType | None = None) -> Node:
    """Prefix products along ``dim``, as ``cumsum``."""
    return _prefixes("cumprod", "prod", 1, x, dim, dtype)


def _prefixes(op: str, kind: str, neutral: int, x: Node, dim: int, dtype: DType | None) -> Node:
    result = _sum_type(x, dtype)
    if not x.shape:
        return to_dtype(x, result)
    axis = dim % len(x.shape)
    length = static_size(x.shape[axis])
    if length is None or length > LONGEST_PREFIX:
        raise UnsupportedError(f"{op} over {'a symbolic number of' if length is None else length} elements")
    wide = compute_type(result)

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            r = Var("r")
            taken = f[tuple(r if d == axis else a for d, a in enumerate(axes))]
            kept = select(compare("le", r, axes[axis]), cast(taken, wide), const(neutral, wide))
            return reduce(kind, [(r, length)], kept)

        return at

    return define(op, [x], x.shape, element, result)
