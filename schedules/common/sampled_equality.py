"""Equality of index expressions, tested on random values if simplification cannot decide it.

Index expressions of symbolic sizes have no complete normal form. The planner promises that an element-wise neighbour
reads its anchor at its own position; this checks the promise by evaluation on random sizes and positions (the idea of
Schwartz and Zippel: two different polynomials agree on few random points).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import index
from taskmap.ir.functions import FUNCTIONS
from taskmap.ir.nodes import Binary, Call, Cast, Compare, Const, Dim, Expr, Select, Unary, Var
from taskmap.ir.visit import walk_exprs

_ROUNDS = 12
_ATTEMPTS = 400
_LARGEST_SIZES = (12, 300)


def equal_on_samples(a: Sequence[Expr], b: Sequence[Expr], simplifier: Simplifier, shape: Sequence[Dim]) -> bool:
    """True if ``a`` and ``b``, positions in ``shape``, had equal values in every round; False if they differed once or
    cannot be evaluated. Rounds in which ``b`` lies outside ``shape`` do not count: a branch prevents such accesses."""
    extents = [index(n) for n in shape]
    names = [e for x in (*a, *b, *extents) for e in walk_exprs(x) if isinstance(e, Var)]
    names = sorted(dict.fromkeys(names), key=lambda v: v.uid)
    chance = random.Random(0)
    rounds = 0
    for _ in range(_ATTEMPTS):
        values = _sample(names, simplifier, chance)
        if values is None:
            continue
        try:
            if not all(0 <= _value(x, values) < _value(n, values) for x, n in zip(b, extents, strict=True)):
                continue
            if any(_value(x, values) != _value(y, values) for x, y in zip(a, b, strict=True)):
                return False
        except (KeyError, TypeError, ZeroDivisionError):
            return False
        rounds += 1
        if rounds == _ROUNDS:
            return True
    return False


def _sample(names: list[Var], simplifier: Simplifier, chance: random.Random) -> dict[Var, int] | None:
    """Values for all variables: sizes first, then loop variables below their extents; None if a loop is empty."""
    sizes = {e for p in simplifier.extents.values() for m in p for a in m for e in walk_exprs(a) if isinstance(e, Var)}
    values: dict[Var, int] = {}
    for v in sorted({*names, *sizes}, key=lambda v: v.uid):
        if v in simplifier.extents:
            continue
        low, high = simplifier.ranges.get(v, (1, math.inf))
        low = low if math.isfinite(low) else -1
        values[v] = chance.randint(int(low), int(min(high, max(low, 1) + chance.choice(_LARGEST_SIZES))))
    for v in names:
        if v in simplifier.extents:
            extent = _value(poly.to_expr(simplifier.extents[v]), values)
            if extent < 1:
                return None
            values[v] = chance.randrange(extent)
    return values


def _value(e: Expr, values: dict[Var, int]) -> int:
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return values[e]
    if isinstance(e, Unary) and e.op == "neg":
        return -_value(e.a, values)
    if isinstance(e, Select):
        return _value(e.a if _value(e.cond, values) else e.b, values)
    if isinstance(e, (Binary, Compare)):
        return _OPERATIONS[e.op](_value(e.a, values), _value(e.b, values))
    if isinstance(e, Cast) and e.a.dtype.is_float:  # of a size that floats lead to, as that of an image scaled by 1.5
        return int(_real(e.a, values))
    if isinstance(e, Cast):
        return _value(e.a, values)
    raise TypeError(f"{type(e).__name__} has no value in an index expression")


def _real(e: Expr, values: dict[Var, int]) -> float:
    if isinstance(e, Const):
        return float(e.value)
    if isinstance(e, Cast):
        return _real(e.a, values) if e.a.dtype.is_float else float(_value(e.a, values))
    if isinstance(e, Call):
        return float(FUNCTIONS[e.name].reference(*(_real(a, values) for a in e.args)))
    if isinstance(e, Binary) and e.op in _REAL_OPERATIONS:
        return _REAL_OPERATIONS[e.op](_real(e.a, values), _real(e.b, values))
    raise TypeError(f"{type(e).__name__} has no value in a size")


_REAL_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "min": min,
    "max": max,
}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "gt": lambda a, b: int(a > b),
    "ge": lambda a, b: int(a >= b),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
}
