"""The functions that ``Call`` may name: arity, result type, and a numpy reference.

The names are defined only here; a code generator must support each of them for f32 and f64 (half types are computed in
f32). Arguments share one floating type except in ``checked_index``. Integer division, remainder and powers are
expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import IndexOutOfRangeError, TypeMismatchError
from taskmap.ir.nodes import Call
from taskmap.ir.types import DType, boolean, i64

Array = NDArray[Any]


class Result(Enum):
    """The type of a function's result: that of its arguments, bool, or i64."""

    SAME = "same"
    BOOL = "bool"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its number of arguments, its result type, and its value in numpy."""

    name: str
    arity: int
    result: Result
    reference: Callable[..., Any]

    def result_type(self, argument: DType) -> DType:
        """The type of the result for arguments of type ``argument``."""
        if self.result is Result.SAME:
            return argument
        return boolean if self.result is Result.BOOL else i64


def _slow(scalar: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of the standard library, applied to each element and rounded to the argument's type."""
    ufunc = np.frompyfunc(scalar, 1, 1)
    return lambda x: np.asarray(ufunc(x)).astype(x.dtype)


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """Recurrence up to 10, then the asymptotic series; reflection for negative arguments (Abramowitz & Stegun, 6.3)."""
    x = float(x)
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return x
    if x == 0.0:
        return math.copysign(math.inf, -x)
    if x < 0 and x == math.floor(x):
        return math.nan
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1.0))
    result = 0.0
    while x < 10:
        result -= 1 / x
        x += 1
    z = 1 / (x * x)
    series = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * (691 / 32760 - z / 12))))))
    return result + math.log(x) - 0.5 / x - series


def _erfinv(y: float) -> float:
    """Winitzki's initial guess, then Newton's method on erf (on erfc near the ends)."""
    y = float(y)
    if math.isnan(y) or abs(y) > 1:
        return math.nan
    if abs(y) == 1:
        return math.copysign(math.inf, y)
    a = 0.147
    log = math.log1p(-y * y)
    half = 2 / (math.pi * a) + log / 2
    x = math.copysign(math.sqrt(math.sqrt(half * half - log / a) - half), y)
    for _ in range(4):
        tail = math.copysign(1.0, y) * ((1 - abs(y)) - math.erfc(abs(x)))
        error = math.erf(x) - y if abs(y) < 0.9 else tail
        x -= error / (2 / math.sqrt(math.pi) * math.exp(-x * x))
    return x


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _sign(x: Array) -> Array:
    """sign with sign(NaN) = 0, as in torch."""
    return np.asarray((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype))


def _checked_index(index: Array, size: Array) -> Array:
    wrapped = np.where(index < 0, index + size, index)
    if np.any((wrapped < 0) | (wrapped >= size)):
        raise IndexOutOfRangeError(f"an index in [{index.min()}, {index.max()}] is outside a dimension of {size.max()}")
    return np.asarray(wrapped)


def _one(x: Array) -> Any:
    return x.dtype.type(1)


_UNARY: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _slow(math.erf),
    "erfc": _slow(math.erfc),
    "erfinv": _slow(_erfinv),
    "lgamma": _slow(_lgamma),
    "digamma": _slow(_digamma),
    "sigmoid": _sigmoid,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: _one(x) / np.sqrt(x),
    "reciprocal": lambda x: _one(x) / x,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "sign": _sign,
}

_BINARY: dict[str, Callable[..., Any]] = {
    "pow": np.power,
    "atan2": np.arctan2,
    "fmod": np.fmod,
    "remainder": np.remainder,
    "floor_div": np.floor_divide,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "copysign": np.copysign,
    "hypot": np.hypot,
}

_PREDICATES: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
}


def _fma(x: Array, y: Array, z: Array) -> Array:
    """x y + z, in f32 rounded only once (but for double rounding in f64), in f64 twice."""
    wide = np.multiply(x, y, dtype=np.float64) + z
    return np.asarray(wide).astype(np.asarray(x).dtype)


FUNCTIONS: dict[str, Function] = {
    **{name: Function(name, 1, Result.SAME, f) for name, f in _UNARY.items()},
    **{name: Function(name, 2, Result.SAME, f) for name, f in _BINARY.items()},
    **{name: Function(name, 1, Result.BOOL, f) for name, f in _PREDICATES.items()},
    "fma": Function("fma", 3, Result.SAME, _fma),
    "checked_index": Function("checked_index", 2, Result.INDEX, _checked_index),
}
"""Every function by name.

``remainder`` has the divisor's sign and ``fmod`` the dividend's; ``floor_div`` is floor(a / b) computed exactly, as
Python's ``//`` on floats; ``round`` rounds ties to even; ``sign`` of NaN is 0; ``fmin`` and ``fmax`` ignore a NaN.
``fma(x, y, z)`` is x y + z, rounded once where the hardware can; nothing else in a kernel is fused into one rounding.
``checked_index(i, size)`` wraps a negative index once and reports one that is still out of range.
"""


def function_named(name: str) -> Function:
    """The function with this name. Raises TypeMismatchError for a name that is not in the table."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    raise TypeMismatchError(f"unknown function {name!r}; taskmap has {', '.join(sorted(FUNCTIONS))}")


def check_call(call: Call) -> None:
    """Raises TypeMismatchError if ``call`` has a wrong name, number or type of arguments, or result type."""
    function = function_named(call.name)
    if len(call.args) != function.arity:
        raise TypeMismatchError(f"{call.name} takes {function.arity} arguments, not {len(call.args)}")
    argument = call.args[0].dtype
    if not (argument == i64 if function.result is Result.INDEX else argument.is_float):
        raise TypeMismatchError(f"{call.name} does not take {argument}")
    if call.dtype != function.result_type(argument):
        raise TypeMismatchError(f"{call.name} of {argument} gives {function.result_type(argument)}, not {call.dtype}")
