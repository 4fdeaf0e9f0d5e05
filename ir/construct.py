"""Constructors that keep expressions small: they convert operands to one type and width and fold constants.

They apply only local identities that always hold (x + 0 for integers, x * 1, constants); ``simplify`` does the rest.
Floating-point identities that would change NaN, infinities or signed zero are not applied.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache

from taskmap.ir.errors import TypeMismatchError
from taskmap.ir.expressions import (
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    ExprLike,
    LaneReduce,
    Load,
    Ramp,
    Reduce,
    Select,
    Unary,
    Var,
)
from taskmap.ir.types import FLOAT8, DType, boolean, f32, f64, i64, is_exact, promote

Number = int | float | bool


def const(value: Number, dtype: DType) -> Const:
    """The literal ``value`` of type ``dtype``; integers wrap to its width, floats stay Python floats."""
    kind = dtype.kind
    if kind == "f":
        return Const(float(value), dtype)
    if kind == "b":
        return Const(bool(value), dtype)
    return _index(int(value)) if dtype is i64 else Const(_wrap(int(value), dtype), dtype)


@lru_cache(maxsize=4096)  # indices use few constants, each many times
def _index(value: int) -> Const:
    return Const(_wrap(value, i64), i64)


def _wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def as_expr(value: ExprLike, like: DType | None = None) -> Expr:
    """``value`` as an expression. A Python number takes the type ``like`` if that holds it, else i64, f32 or bool."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool):
        return const(value, like or boolean)
    if isinstance(value, int):
        return const(value, like if like is not None and not like.is_bool else i64)
    return const(value, like if like is not None and like.is_float else f32)


def index(value: Dim) -> Expr:
    """A size or an index as an i64 expression."""
    return _index(value) if type(value) is int else as_expr(value, i64)


def constant_value(expr: ExprLike) -> Number | None:
    """The Python value of a constant expression, or None."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Broadcast):
        return constant_value(expr.a)
    return None if isinstance(expr, Expr) else expr


def widen(expr: Expr, lanes: int) -> Expr:
    """``expr`` with ``lanes`` lanes; a scalar is broadcast. Raises TypeMismatchError for a vector of another width."""
    if expr.lanes == lanes:
        return expr
    if expr.lanes == 1:
        return Broadcast(expr, lanes, expr.dtype)
    raise TypeMismatchError(f"a vector of {expr.lanes} lanes is combined with one of {lanes} lanes in {expr!r}")


def _operands(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        if isinstance(b, Expr):
            if a.dtype is b.dtype and a.lanes == b.lanes:
                return a, b
        elif type(b) is int and a.dtype is i64 and a.lanes == 1:
            return a, _index(b)
    x = as_expr(a, b.dtype if isinstance(b, Expr) else None)
    y = as_expr(b, x.dtype)
    if x.dtype != y.dtype:
        common = promote(x.dtype, y.dtype)
        x, y = cast(x, common), cast(y, common)
    lanes = max(x.lanes, y.lanes)
    return widen(x, lanes), widen(y, lanes)


def _floordiv(a: int, b: int) -> int:
    return a // b


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _floordiv,
    "mod": operator.mod,
    "tdiv": _floordiv,
    "tmod": operator.mod,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """``a op b`` in the promoted type. Raises TypeMismatchError for an operation that the type does not support."""
    x, y = _operands(a, b)
    if op == "div" and not x.dtype.is_float:
        x, y = cast(x, f32), cast(y, f32)
    dtype = x.dtype
    if dtype.kind == "f":
        if op in _BITWISE:
            raise TypeMismatchError(f"{op} needs integers or bools, not {dtype}")
    else:
        p = x.value if isinstance(x, Const) else constant_value(x) if isinstance(x, Broadcast) else None
        q = y.value if isinstance(y, Const) else constant_value(y) if isinstance(y, Broadcast) else None
        if p is not None or q is not None:
            folded = _fold_integers(op, x, y, p, q)
            if folded is not None:
                return folded
    return Binary(op, x, y, dtype, x.lanes)


_BITWISE = frozenset(("and", "or", "xor", "shl", "shr"))


def _fold_integers(op: str, x: Expr, y: Expr, p: Number | None, q: Number | None) -> Expr | None:
    if p is not None and q is not None and op in _FOLD and not (q == 0 and op in ("floordiv", "mod", "tdiv", "tmod")):
        return widen(const(_FOLD[op](int(p), int(q)), x.dtype), x.lanes)
    if x.dtype.is_bool:
        return _fold_bools(op, x, y, p, q)
    if q == 0:
        if op in ("add", "sub", "or", "xor", "shl", "shr"):
            return x
        return y if op in ("mul", "and") else None
    if p == 0:
        if op in ("add", "or", "xor"):
            return y
        return x if op in ("mul", "and", "shl", "shr") else None
    if q == 1:
        if op in ("mul", "floordiv", "tdiv"):
            return x
        return widen(const(0, x.dtype), x.lanes) if op in ("mod", "tmod") else None
    return y if p == 1 and op == "mul" else None


def _fold_bools(op: str, x: Expr, y: Expr, p: Number | None, q: Number | None) -> Expr | None:
    if op not in ("and", "or"):
        return None
    known, other = (p, y) if p is not None else (q, x)
    if op == "and":
        return other if known else (x if p is not None else y)
    return other if not known else (x if p is not None else y)


_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


def compare(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """``a op b`` as bool, with the operands in their promoted type."""
    x, y = _operands(a, b)
    p, q = constant_value(x), constant_value(y)
    if p is not None and q is not None:
        return widen(const(_COMPARE[op](p, q), boolean), x.lanes)
    if x == y and not x.dtype.is_float:
        return widen(const(op in ("le", "ge", "eq"), boolean), x.lanes)
    return Compare(op, x, y, x.lanes)


def eq(a: ExprLike, b: ExprLike) -> Expr:
    """a == b as an expression."""
    return compare("eq", a, b)


def ne(a: ExprLike, b: ExprLike) -> Expr:
    """a != b as an expression."""
    return compare("ne", a, b)


def unary(op: str, a: ExprLike) -> Expr:
    """neg, not or abs of ``a``."""
    x = as_expr(a)
    value = constant_value(x)
    if value is not None:
        if op == "neg" and not x.dtype.is_bool:
            return widen(const(-value, x.dtype), x.lanes)
        if op == "not" and not x.dtype.is_float:
            return widen(const(not value if x.dtype.is_bool else ~int(value), x.dtype), x.lanes)
        if op == "abs":
            return widen(const(abs(value), x.dtype), x.lanes)
    if op == "not" and x.dtype.is_float:
        raise TypeMismatchError(f"not needs an integer or a bool, not {x.dtype}")
    return Unary(op, x, x.dtype, x.lanes)


def cast(a: ExprLike, dtype: DType) -> Expr:
    """``a`` converted to ``dtype`` as Tensor.to(dtype); 8-bit floats by way of f32, which is exact or matches
    PyTorch. Integers that a narrower float holds exactly are not converted to it first."""
    x = as_expr(a)
    if x.dtype is dtype or x.dtype == dtype:
        return x
    if f32 not in (x.dtype, dtype) and (x.dtype in FLOAT8 or dtype in FLOAT8):
        return cast(cast(x, f32), dtype)
    value = constant_value(x)
    if value is not None and not (isinstance(value, float) and not math.isfinite(value) and not dtype.is_float):
        if dtype in (f32, i64, boolean) or not x.dtype.is_float:
            return widen(const(value, dtype), x.lanes)
    if isinstance(x, Cast) and dtype in (f32, f64) and x.a.dtype.is_int and x.dtype.is_float:
        return Cast(x.a if is_exact(x.a.dtype, x.dtype) else x, dtype, x.lanes)
    return Cast(x, dtype, x.lanes)


def select(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """a where cond holds, else b, in the promoted type of a and b. Both are evaluated."""
    test = as_expr(cond)
    if not test.dtype.is_bool:
        test = ne(test, const(0, test.dtype))
    x, y = _operands(a, b)
    lanes = max(test.lanes, x.lanes)
    x, y = widen(x, lanes), widen(y, lanes)
    known = constant_value(test)
    if known is not None:
        return x if known else y
    return x if x == y else Select(widen(test, lanes), x, y, x.dtype, lanes)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The smaller of two; NaN if either is NaN."""
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The larger of two; NaN if either is NaN."""
    return binary("max", a, b)


def call(name: str, *args: ExprLike, dtype: DType | None = None) -> Expr:
    """The function ``name`` of its arguments, converted to one type; ``dtype``: the result's type, by default
    theirs.
    """
    exprs = [as_expr(a) for a in args]
    common = exprs[0].dtype
    for e in exprs[1:]:
        common = promote(common, e.dtype)
    lanes = max(e.lanes for e in exprs)
    converted = tuple(widen(cast(e, common), lanes) for e in exprs)
    return Call(name, converted, dtype or common, lanes)


def load(buffer: Buffer, indices: Sequence[ExprLike]) -> Expr:
    """buffer[indices]. Raises TypeMismatchError if the number of indices differs from the buffer's rank."""
    if len(indices) != len(buffer.shape):
        raise TypeMismatchError(f"{buffer!r} has {len(buffer.shape)} dimensions but is indexed with {len(indices)}")
    exprs = tuple([as_expr(i, i64) for i in indices])
    lanes = max([e.lanes for e in exprs], default=1)
    return Load(buffer, exprs, buffer.dtype, lanes)


def ramp(base: ExprLike, stride: ExprLike, lanes: int) -> Expr:
    """base + stride * [0, lanes)."""
    return Ramp(as_index(base), as_index(stride), lanes)


def as_index(value: ExprLike) -> Expr:
    """``value`` as an i64 expression."""
    if isinstance(value, Expr) and value.dtype is i64:
        return value
    return cast(as_expr(value, i64), i64)


def lane_reduce(op: str, a: Expr) -> Expr:
    """All lanes of ``a`` reduced by ``op`` to a scalar; a scalar is returned unchanged."""
    return a if a.lanes == 1 else LaneReduce(op, a, a.dtype)


def reduce(op: str, axes: Sequence[tuple[Var, Dim]], body: ExprLike) -> Expr:
    """A reduction of ``body`` over ``axes``; argmax and argmin give the i64 index along their single axis."""
    value = as_expr(body)
    dtype = i64 if op in ("argmax", "argmin") else boolean if op in ("any", "all") else value.dtype
    return Reduce(op, tuple(axes), value, dtype)


def identity(op: str, dtype: DType) -> Const:
    """The neutral element of a reduction by ``op``: x op identity = x."""
    if op in ("sum", "any"):
        return const(0, dtype)
    if op in ("prod", "all"):
        return const(1, dtype)
    low = op in ("max", "argmax")
    if dtype.is_float:
        return const(-math.inf if low else math.inf, dtype)
    if dtype.is_bool:
        return const(not low, dtype)
    bottom = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    top = (1 << (dtype.bits - (dtype.kind == "i"))) - 1
    return const(bottom if low else top, dtype)


def ceil_div(a: Dim, b: Dim) -> Dim:
    """ceil(a / b) for sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    if isinstance(b, int) and b == 1:
        return a
    return binary("floordiv", binary("sub", binary("add", a, b), 1), b)


def static_size(dim: Dim) -> int | None:
    """The value of a size if it is known, else None."""
    if isinstance(dim, int):
        return dim
    value = constant_value(dim)
    return None if value is None else int(value)


def product(dims: Sequence[Dim]) -> Dim:
    """The product of sizes; 1 without sizes."""
    total: Dim = 1
    for d in dims:
        total = total * d
        value = static_size(total)
        total = total if value is None else value
    return total


def _operator(op: str) -> Callable[[Expr, ExprLike], Expr]:
    return lambda self, other: binary(op, self, other)


def _reflected(op: str) -> Callable[[Expr, ExprLike], Expr]:
    return lambda self, other: binary(op, other, self)


def _comparison(op: str) -> Callable[[Expr, ExprLike], Expr]:
    return lambda self, other: compare(op, self, other)


def _install_operators() -> None:
    """Gives expressions their operators and buffers their indexing."""
    arithmetic = {"truediv": "div", "lshift": "shl", "rshift": "shr"}
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
        op = arithmetic.get(name, name)
        setattr(Expr, f"__{name}__", _operator(op))
        setattr(Expr, f"__r{name}__", _reflected(op))
    for op in ("lt", "le", "gt", "ge"):
        setattr(Expr, f"__{op}__", _comparison(op))
    Expr.__neg__ = lambda self: unary("neg", self)  # type: ignore[method-assign]
    Expr.__invert__ = lambda self: unary("not", self)  # type: ignore[method-assign]
    Buffer.__getitem__ = lambda self, at: load(self, at if isinstance(at, tuple) else (at,))  # type: ignore[method-assign]


_install_operators()
