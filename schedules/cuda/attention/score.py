"""A score in terms of the product of its query and key: a scale, which the exponent absorbs, and masks, which are
uniform over all but a few tiles.

    scale · (key > query ? -inf : q·k)        scale: 1/sqrt(d);  masked: only in tiles that the diagonal crosses
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from taskmap.ir.construct import as_expr, compare, constant_value, index, select, static_size
from taskmap.ir.nodes import Binary, Cast, Compare, Expr, Select, Var
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.attention_match import Attention

Ranges = Mapping[Var, tuple[Expr, Expr]]
"""The least and the greatest value of each axis."""

_CONTRARY = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class Score:
    """A score is ``scale`` times ``value``, an expression of the product; scale is positive.

    masks: if all of these comparisons hold (or, for False, do not hold), ``value`` is the bare product; None if it
    never is.
    """

    value: Expr
    scale: float
    masks: tuple[tuple[Compare, bool], ...] | None

    def unmasked(self, ranges: Ranges) -> Expr | None:
        """A condition on a tile, whose axes lie within ``ranges``, under which each value is the bare product; a
        constant if that is known. None if no condition decides it."""
        if self.masks is None:
            return None
        found = as_expr(True)
        for mask, holds in self.masks:
            everywhere = _everywhere(mask, holds, ranges)
            if everywhere is None:
                return None
            found = found & everywhere
        return found


def score_of(a: Attention) -> Score:
    """The parts of an attention's score."""
    found = _scaled(a.score, a.dot)
    value, scale = found if found is not None and found[1] is not None else (a.score, 1.0)
    assert scale is not None
    return Score(value, scale, _masks(value, a.dot))


def _scaled(e: Expr, dot: Expr) -> tuple[Expr, float | None] | None:
    """``e`` as a factor times an expression without it. A factor of None means that any factor is valid, as for
    -infinity."""
    if e is dot:
        return e, 1.0
    if isinstance(e, Cast) and e.dtype == e.a.dtype:
        return _scaled(e.a, dot)
    never = constant_value(e)
    if never is not None:
        return (e, None) if never == -math.inf else None
    if isinstance(e, Binary) and e.op in ("mul", "div"):
        sides = [(e.a, e.b)] if e.op == "div" else [(e.a, e.b), (e.b, e.a)]
        for inner, by in sides:
            factor, found = constant_value(by), _scaled(inner, dot)
            if factor is None or not 1e-30 < float(factor) < 1e30 or found is None or found[1] is None:
                continue
            return found[0], found[1] * float(factor) if e.op == "mul" else found[1] / float(factor)
        return None
    if isinstance(e, Select) and not any(x is dot for x in walk_exprs(e.cond)):
        a, b = _scaled(e.a, dot), _scaled(e.b, dot)
        if a is None or b is None or (None not in (a[1], b[1]) and a[1] != b[1]):
            return None
        return select(e.cond, a[0], b[0]), b[1] if a[1] is None else a[1]
    return None


def _masks(e: Expr, dot: Expr) -> tuple[tuple[Compare, bool], ...] | None:
    """The comparisons under which ``e`` is the bare product."""
    if e is dot:
        return ()
    if not isinstance(e, Select) or not isinstance(e.cond, Compare) or e.cond.op not in _CONTRARY:
        return None
    for side, holds in ((e.a, True), (e.b, False)):
        inner = _masks(side, dot)
        if inner is not None:
            return (e.cond, holds), *inner
    return None


def _everywhere(mask: Compare, holds: bool, ranges: Ranges) -> Expr | None:
    """A condition under which a comparison holds for all values of the axes, or (not ``holds``) for none."""
    op = mask.op if holds else _CONTRARY[mask.op]
    low = op in ("lt", "le")
    a, b = _bound(mask.a, ranges, largest=low), _bound(mask.b, ranges, largest=not low)
    return None if a is None or b is None else compare(op, a, b)


def _bound(e: Expr, ranges: Ranges, *, largest: bool) -> Expr | None:
    """The greatest, or the least, value of a sum of axes and constants; None for other expressions."""
    if isinstance(e, Var):
        return ranges[e][largest] if e in ranges else None
    if isinstance(e, Binary) and e.op in ("add", "sub"):
        a = _bound(e.a, ranges, largest=largest)
        b = _bound(e.b, ranges, largest=largest == (e.op == "add"))
        return None if a is None or b is None else a + b if e.op == "add" else a - b
    size = static_size(e) if not isinstance(e, Var) else None
    return None if size is None else index(size)
