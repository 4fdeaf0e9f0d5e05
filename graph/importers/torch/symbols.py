"""torch's symbolic sizes (sympy expressions) as index expressions over the graph's size variables.

Every reader of the graph assumes that a size variable is at least 1. A symbol for which torch does not guarantee this
(an int among a function's arguments) is therefore expressed by variables that satisfy it: n = p - q, where p is
max(n, 0) + 1 and q is max(-n, 0) + 1. A symbol bounded on one side needs only one of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from taskmap.ir.construct import binary, call, cast, ceil_div, const, constant_value, index, maximum, minimum
from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.types import f64, i64

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


class Line(NamedTuple):
    """A variable's value at a call, max(slope * n + start, 1), where n is the number passed in the call."""

    slope: int
    start: int

    def at(self, n: int) -> int:
        """The variable's value for ``n``."""
        return max(self.slope * n + self.start, 1)


PLAIN, UP, DOWN = Line(1, 0), Line(1, 1), Line(-1, 1)


class Symbols:
    """The variables for each symbolic size of a graph, the place of its value in a call, and its traced value."""

    def __init__(self) -> None:
        self.parts: dict[sympy.Symbol, dict[Var, Line]] = {}
        self.values: dict[sympy.Symbol, Expr] = {}
        self.places: dict[sympy.Symbol, tuple[object, ...]] = {}
        self.hints: dict[Var, int] = {}
        self._memo: dict[sympy.Basic, Expr] = {}
        self._shapes: Any = None

    def dim(self, value: Any) -> Dim:
        """One size of a tensor's shape or stride, or another integer; of Python's if its value is known."""
        if isinstance(value, int):
            return value
        number = self.number(value)
        known = constant_value(number)
        return number if known is None else int(known)

    def number(self, value: Any) -> Expr:
        """A symbolic number as an expression of i64, or of f64 for a SymFloat."""
        if isinstance(value, torch.SymBool):
            raise UnsupportedError("a symbolic bool as a value")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            self._shapes = value.node.shape_env
            return self.expression(_simplified(value))
        return const(value, f64 if isinstance(value, float) else i64)

    def expression(self, e: sympy.Basic) -> Expr:
        """A sympy expression of sizes. Raises UnsupportedError for a function without an equivalent."""
        if e not in self._memo:
            self._memo[e] = self._convert(e)
        return self._memo[e]

    def find(self, value: Any, place: tuple[object, ...]) -> None:
        """Records ``place`` as the place of ``value`` in a call, if it is a single symbol, and its traced value."""
        symbol = _simplified(value) if isinstance(value, torch.SymInt) else None
        if isinstance(symbol, sympy.Symbol):
            self._shapes = value.node.shape_env
            self.symbol(symbol)
            self.places.setdefault(symbol, place)
            if isinstance(value.node.hint, int):
                for var, line in self.parts[symbol].items():
                    self.hints.setdefault(var, line.at(value.node.hint))

    def symbol(self, symbol: sympy.Symbol) -> Expr:
        """A symbol in terms of variables that are at least 1. Raises ImportGraphError unless it is an integer."""
        if not symbol.is_integer:
            raise ImportGraphError(f"the graph depends on the symbolic number {symbol}, which is not an integer")
        if symbol not in self.values:
            low, high = self._range(symbol)
            if low >= 1:
                self.values[symbol] = self._part(symbol, PLAIN)
            elif low >= 0:
                self.values[symbol] = self._part(symbol, UP) - 1
            elif high <= -1:
                self.values[symbol] = -self._part(symbol, Line(-1, 0))
            else:
                self.values[symbol] = self._part(symbol, UP) - self._part(symbol, DOWN)
        return self.values[symbol]

    def dims(self) -> dict[Var, tuple[object, ...]]:
        """Every size variable with its place. Raises ImportGraphError for a size that no input provides."""
        found: dict[Var, tuple[object, ...]] = {}
        for symbol, parts in self.parts.items():
            place = self.places.get(symbol)
            if place is None:
                raise ImportGraphError(
                    f"the size {symbol} of the graph cannot be read off its inputs",
                    why="it is computed from data, or only a function of it occurs as a size",
                )
            found.update({var: place if line == PLAIN else ("line", *line, *place) for var, line in parts.items()})
        return found

    def _part(self, symbol: sympy.Symbol, line: Line) -> Var:
        made = Var(f"n{sum(map(len, self.parts.values()))}")
        self.parts.setdefault(symbol, {})[made] = line
        return made

    def _range(self, symbol: sympy.Symbol) -> tuple[float, float]:
        """The smallest and the largest value that torch's guards allow."""
        if self._shapes is None:
            return -math.inf, math.inf
        known = self._shapes.bound_sympy(symbol)
        return float(known.lower), float(known.upper)

    def _convert(self, e: sympy.Basic) -> Expr:
        if isinstance(e, sympy.Symbol):
            return self.symbol(e)
        if isinstance(e, sympy.Integer):
            return index(int(e))
        if isinstance(e, (sympy.Float, sympy.Rational)):
            return const(float(e), f64)
        name = type(e).__name__
        if name in ("Add", "Mul", "Max", "Min"):
            return self._fold(name, [self.expression(a) for a in e.args])
        if name in ("Pow", "PowByNatural", "FloatPow"):
            return self._power(e.args[0], e.args[1])
        if name not in _FUNCTIONS:
            raise UnsupportedError(f"a size computed by {name}")
        return _FUNCTIONS[name](*(self.expression(a) for a in e.args))

    def _fold(self, name: str, args: list[Expr]) -> Expr:
        combine = {"Add": _add, "Mul": _mul, "Max": maximum, "Min": minimum}[name]
        result = args[0]
        for arg in args[1:]:
            result = combine(result, arg)
        return result

    def _power(self, base: sympy.Basic, exponent: sympy.Basic) -> Expr:
        x = self.expression(base)
        if not isinstance(exponent, sympy.Integer) or not 0 <= int(exponent) <= 16:
            return call("pow", cast(x, f64), cast(self.expression(exponent), f64))
        return math.prod([x] * (int(exponent) - 1), start=x) if int(exponent) else const(1, x.dtype)


def _simplified(value: Symbolic) -> sympy.Basic:
    """The number's expression in the shortest form known to be equal, so that equal sizes look the same."""
    shapes = value.node.shape_env
    if shapes is None:
        return value.node.expr
    simple = shapes.simplify(value.node.expr)
    # Operators broadcast axes of one element, so a size that a guard fixes at 1 is 1, whatever its expression.
    guarded = isinstance(value, torch.SymInt) and value.node.hint == 1 and not isinstance(simple, sympy.Symbol)
    return sympy.Integer(1) if guarded and statically_known_true(value == 1) else simple


def _add(a: Expr, b: Expr) -> Expr:
    return a + b


def _mul(a: Expr, b: Expr) -> Expr:
    return a * b


def _quotient(a: Expr, b: Expr) -> Expr:
    return cast(a, f64) / cast(b, f64)


def _rounded(name: str) -> Callable[[Expr], Expr]:
    return lambda a: cast(call(name, cast(a, f64)), i64)


def _function(name: str) -> Callable[[Expr], Expr]:
    return lambda a: call(name, cast(a, f64))


_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "FloorDiv": lambda a, b: binary("floordiv", a, b),
    "CleanDiv": lambda a, b: binary("floordiv", a, b),
    "CeilDiv": lambda a, b: index(ceil_div(a, b)),
    "ModularIndexing": lambda a, b, m: binary("mod", binary("floordiv", a, b), m),
    "Mod": lambda a, b: binary("mod", a, b),
    "PythonMod": lambda a, b: binary("mod", a, b),
    "IntTrueDiv": _quotient,
    "FloatTrueDiv": _quotient,
    "ToFloat": lambda a: cast(a, f64),
    "FloorToInt": _rounded("floor"),
    "CeilToInt": _rounded("ceil"),
    "TruncToInt": _rounded("trunc"),
    "RoundToInt": _rounded("round"),
    "Identity": lambda a: a,
    "OpaqueUnaryFn_sqrt": _function("sqrt"),
    "OpaqueUnaryFn_exp": _function("exp"),
    "OpaqueUnaryFn_log": _function("log"),
    "Abs": lambda a: maximum(a, -a),
}
