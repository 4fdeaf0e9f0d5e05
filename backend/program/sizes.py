"""Sizes as source: a symbolic size becomes a C expression, or a Python function of the symbolic dimensions.

Only arithmetic on known nodes is written, and variables get names chosen here, so no name from a model reaches the
generated text. Both compute sizes in floating point (a scale of 1.5) in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from taskmap.ir.errors import CodegenError
from taskmap.ir.expressions import Binary, Call, Cast, Compare, Const, Dim, Expr, Select, Unary, Var

SizesFunction = Callable[[Sequence[int]], tuple[int, ...]]

_BUILTINS = {"abs": abs, "float": float, "int": int, "max": max, "min": min, "round": round}
_MATH = ("ceil", "exp", "floor", "log", "pow", "sqrt", "trunc")
_PYTHON = {
    "div": "({} / {})",
    **{name: f"{name}({{}})" for name in _MATH},
    "pow": "pow({}, {})",
    "round": "round({})",
    "float": "float({})",
    "int": "int({})",
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "floordiv": "({} // {})",
    "mod": "({} % {})",
    "tdiv": "({} // {})",
    "tmod": "({} % {})",
    "min": "min({}, {})",
    "max": "max({}, {})",
    "and": "({} & {})",
    "or": "({} | {})",
    "xor": "({} ^ {})",
    "shl": "({} << {})",
    "shr": "({} >> {})",
    "neg": "(-{})",
    "abs": "abs({})",
    "not": "(not {})",
    "select": "({1} if {0} else {2})",
}
_C = {
    **_PYTHON,
    **{name: f"__builtin_{name}({{}})" for name in _MATH},
    "pow": "__builtin_pow({}, {})",
    "round": "__builtin_rint({})",
    "float": "((double){})",
    "int": "((long long){})",
    "floordiv": "tm_floordiv({}, {})",
    "mod": "tm_mod({}, {})",
    "tdiv": "({} / {})",
    "min": "tm_min({}, {})",
    "max": "tm_max({}, {})",
    "abs": "tm_max({0}, -{0})",
    "not": "(!{})",
    "select": "({} ? {} : {})",
}
_C_FLOATS = {
    **{op: _PYTHON[op] for op in ("add", "sub", "mul", "div", "neg")},
    "min": "__builtin_fmin({}, {})",
    "max": "__builtin_fmax({}, {})",
    "abs": "__builtin_fabs({})",
}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

C_HELPERS = """\
static inline long long tm_mod(long long a, long long b) {
  long long r = a % b;
  return r && (r < 0) != (b < 0) ? r + b : r;
}
static inline long long tm_floordiv(long long a, long long b) { return (a - tm_mod(a, b)) / b; }
static inline long long tm_min(long long a, long long b) { return a < b ? a : b; }
static inline long long tm_max(long long a, long long b) { return a > b ? a : b; }
"""
"""Helpers of this module's C expressions, defined once before them."""


def c_size(size: Dim, names: Mapping[Var, str]) -> str:
    """``size`` as a C expression of type long long over variables called ``names``.

    Raises CodegenError for a node that is not arithmetic, or a variable without a name.
    """
    return _write(size, names, _C, _C_FLOATS, suffix="LL")


_NAMES = {
    "__builtins__": {},
    **_BUILTINS,
    **{name: getattr(math, name) for name in _MATH},
    "inf": math.inf,
    "nan": math.nan,
}


def sizes_function(sizes: Sequence[Dim], dims: Sequence[Var]) -> SizesFunction:
    """The function from the values of ``dims``, in order, to the values of ``sizes``; division of integers rounds down.

    A size may be computed in floating point, and be a float. Raises CodegenError as c_size does.
    """
    if not any(isinstance(s, Expr) and not isinstance(s, Const) for s in sizes):
        known = tuple(int(s.value) if isinstance(s, Const) else int(str(s)) for s in sizes)
        return lambda _: known
    names = {var: f"d[{i}]" for i, var in enumerate(dims)}
    body = "".join(f"{_write(size, names, _PYTHON, _PYTHON, suffix='')}, " for size in sizes)
    # Only operators and numbers from the tables above stand in the text.
    function: SizesFunction = eval(f"lambda d: ({body})", dict(_NAMES))
    return function


def _write(
    size: Dim, names: Mapping[Var, str], integers: Mapping[str, str], floats: Mapping[str, str], suffix: str
) -> str:
    def go(expr: Dim) -> str:
        if not isinstance(expr, Expr):
            return f"{int(expr)}{suffix}" if expr >= 0 else f"({int(expr)}{suffix})"
        if isinstance(expr, Const):
            return number(expr.value) if expr.dtype.is_float else go(int(expr.value))
        if isinstance(expr, Var) and expr in names:
            return names[expr]
        table = floats if expr.dtype.is_float else integers
        if isinstance(expr, Binary) and expr.op in table:
            return table[expr.op].format(go(expr.a), go(expr.b))
        if isinstance(expr, Unary) and expr.op in table:
            return table[expr.op].format(go(expr.a))
        if isinstance(expr, Compare):
            return f"({go(expr.a)} {_COMPARE[expr.op]} {go(expr.b)})"
        if isinstance(expr, Select):
            return integers["select"].format(go(expr.cond), go(expr.a), go(expr.b))
        if isinstance(expr, Cast) and expr.dtype.is_int == expr.a.dtype.is_int:
            return go(expr.a)
        if isinstance(expr, Cast):
            return integers["float" if expr.dtype.is_float else "int"].format(go(expr.a))
        if isinstance(expr, Call) and expr.name in integers:
            return integers[expr.name].format(*map(go, expr.args))
        raise CodegenError(f"cannot write the size {size!r}", why=f"{expr!r} is not arithmetic on known sizes.")

    def number(value: float) -> str:
        if not suffix or math.isfinite(value):
            return f"({value!r})"
        return '__builtin_nan("")' if math.isnan(value) else f"({'-' if value < 0 else ''}__builtin_inf())"

    return go(size)
