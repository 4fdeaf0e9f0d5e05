"""torch's symbolic sizes (sympy expressions) as index expressions over the graph's size variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from taskmap.ir.construct import binary, call, cast, ceil_div, const, index, maximum, minimum, value_of
from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.types import f64, i64

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


class Symbols:
    """One variable for each symbolic size of a graph, where a call finds its value, and what it was while tracing."""

    def __init__(self) -> None:
        self.variables: dict[sympy.Symbol, Var] = {}
        self.found: dict[Var, tuple[object, ...]] = {}
        self.hints: dict[Var, int] = {}
        self._memo: dict[sympy.Basic, Expr] = {}

    def dim(self, value: Any) -> Dim:
        """A size of a tensor's shape or stride."""
        if isinstance(value, int):
            return value
        number = self.number(value)
        known = value_of(number)
        return number if known is None else int(known)

    def number(self, value: Any) -> Expr:
        """A symbolic number as an expression of i64, or of f64 for a SymFloat."""
        if isinstance(value, torch.SymBool):
            raise UnsupportedError("a symbolic bool as a value")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self.expression(_simplified(value))
        return const(value, f64 if isinstance(value, float) else i64)

    def expression(self, e: sympy.Basic) -> Expr:
        """A sympy expression of sizes. Raises UnsupportedError for a function without an equivalent."""
        if e not in self._memo:
            self._memo[e] = self._convert(e)
        return self._memo[e]

    def find(self, value: Any, place: tuple[object, ...]) -> None:
        """Notes that a call finds ``value``, if that is a single symbol, at ``place``, and what it was in tracing."""
        if isinstance(value, torch.SymInt) and isinstance(_simplified(value), sympy.Symbol):
            variable = self.variable(_simplified(value))
            self.found.setdefault(variable, place)
            if isinstance(value.node.hint, int):
                self.hints.setdefault(variable, value.node.hint)

    def variable(self, symbol: sympy.Symbol) -> Var:
        """The variable of a symbol. Raises ImportGraphError for one that is not a size."""
        if not symbol.is_integer:
            raise ImportGraphError(f"the graph depends on the symbolic number {symbol}, which is not an integer")
        if symbol not in self.variables:
            self.variables[symbol] = Var(f"n{len(self.variables)}")
        return self.variables[symbol]

    def dims(self) -> dict[Var, tuple[object, ...]]:
        """Every size with its place. Raises ImportGraphError for one that no input shows."""
        for symbol, var in self.variables.items():
            if var not in self.found:
                raise ImportGraphError(
                    f"the size {symbol} of the graph cannot be read off its inputs",
                    why="it is computed from data, or only a function of it occurs as a size",
                )
        return {var: self.found[var] for var in self.variables.values()}

    def _convert(self, e: sympy.Basic) -> Expr:
        if isinstance(e, sympy.Symbol):
            return self.variable(e)
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
    """The number's expression in the shortest form that is known to be equal, so that equal sizes look alike."""
    shapes = value.node.shape_env
    if shapes is None:
        return value.node.expr
    simple = shapes.simplify(value.node.expr)
    # Operators broadcast axes of one element: a size that a guard holds at 1 is 1, whatever its expression.
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
