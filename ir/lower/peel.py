"""Interior: a vector with all lanes, and all taps of its window, inside the bounds needs no clamps.

for l in vector(16): y[l] = select(c + l < n, x[min(c + l, n - 1)], 0)     ->
if n - c - 16 >= 0:  for l in vector(16): y[l] = x[c + l]                  contiguous
else:                for l in vector(16): y[l] = select(...)               gathered, at the edge only
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import compare, const, constant_value, index
from taskmap.ir.lower.conditions import FLAT, KernelPass
from taskmap.ir.nodes import Binary, Body, Compare, Expr, For, If, Kernel, Let, Load, LoopKind, Stmt, Var
from taskmap.ir.types import boolean, i64
from taskmap.ir.visit import expr_map, fresh, loads_in, map_body, substitute, walk_exprs, walk_stmts

_MOST_CLAMPS = 4
"""With more conditions than this, testing them costs about as much as a gather."""


@dataclass(frozen=True, slots=True)
class SplitInterior(KernelPass):
    """Vector loops with clamped addresses get a copy without clamps, which runs when no clamp would take effect."""

    name = "split-interior"
    before = "clamps that never take effect are gone"
    after = "a vector loop with few clamps has a copy without them, under a test that none takes effect"
    why_here = "after tidy, which leaves only effective clamps; before vectorise, which gathers through them"
    requires = (FLAT,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel, its clamped vector loops under a test."""

        def one(s: Stmt) -> Body | None:
            if not isinstance(s, For) or s.kind is not LoopKind.VECTOR:
                return None
            clamps = _Clamps(s)
            clamps.find()
            if not 0 < len(clamps.slacks) <= _MOST_CLAMPS:
                return None
            inside = fresh((replace(s, body=map_body(s.body, expr=clamps.without())),))
            return (If(clamps.holds(), inside, (s,), s.source),)

        return replace(kernel, body=map_body(kernel.body, one))


@dataclass(slots=True)
class _Clamps:
    """The clamps in addresses of a vector loop. A clamp's slack, linear in the lane, is its distance from taking
    effect: n - 1 - x for min(x, n - 1). It may also be linear in inner loops, over the taps of a window for example."""

    loop: For
    simplifier: Simplifier = field(default_factory=Simplifier)
    slacks: list[Poly] = field(default_factory=list)
    inner: set[Var] = field(init=False)
    extents: dict[Var, int] = field(init=False)
    _tested: list[Poly] | None = None

    def __post_init__(self) -> None:
        named = [s for s in walk_stmts(self.loop.body) if isinstance(s, (For, Let))]
        self.inner = {s.var for s in named}
        loops = [(s.var, constant_value(s.extent)) for s in (self.loop, *named) if isinstance(s, For)]
        self.extents = {v: int(n) for v, n in loops if n is not None}

    @property
    def tested(self) -> list[Poly]:
        """The values that comparisons in the loop test. Most loops have no clamp, and nothing asks for them."""
        if self._tested is None:
            self._tested = [p for e in walk_exprs(self.loop.body) if (p := self.room(e)) is not None]
        return self._tested

    def find(self) -> None:
        """Collect the clamps, each once."""

        def note(e: Expr) -> Expr | None:
            found = self.slack(e)
            if found is None:
                return None
            if found[0] not in self.slacks:
                self.slacks.append(found[0])
            return found[1]

        strip = expr_map(note)
        for e in loads_in(self.loop.body):
            for i in e.indices:
                strip(i)

    def slack(self, e: Expr) -> tuple[Poly, Expr] | None:
        """The slack of a clamp of an index, and that index; None for every other expression."""
        if not isinstance(e, Binary) or e.op not in ("min", "max") or e.dtype != i64 or e.lanes != 1:
            return None
        for clamped, bound in ((e.a, e.b), (e.b, e.a)):
            if self.is_fixed(bound):
                room = bound - clamped if e.op == "min" else clamped - bound
                p = self.simplifier.poly(room)
                return (p, clamped) if self.pays(p) else None
        return None

    def pays(self, p: Poly) -> bool:
        """True if p is linear in the lane and in inner loops, and varies in no other way, and a copy without its clamp
        gains: it depends on the lane, or it decides a comparison, as of a tap outside an image."""
        moving = [v for v in self.extents if v is self.loop.var or v in self.inner]
        if not all(atom in moving or self.is_fixed(atom) for monomial in p for atom in monomial):
            return False
        steps = [poly.linear_coefficient(p, v) for v in moving]
        if None in steps or not any(steps):
            return False
        return bool(poly.linear_coefficient(p, self.loop.var)) or any(_at_least(known, p) for known in self.tested)

    def is_fixed(self, e: Expr) -> bool:
        """True if e is the same for all lanes and throughout the loop."""
        return not any(x is self.loop.var or x in self.inner or isinstance(x, Load) for x in walk_exprs(e))

    def holds(self) -> Expr:
        """The condition that no clamp takes effect in any lane. A slack is linear, so its minimum is in the first or
        the last lane, and likewise for inner loops."""
        total: Expr = const(True, boolean)
        for p in self.slacks:
            worst = {
                v: index(0 if (poly.linear_coefficient(p, v) or 0) > 0 else n - 1) for v, n in self.extents.items()
            }
            least = self.simplifier(substitute(poly.to_expr(p), worst))
            total = total & compare("ge", least, index(0))
        return total

    def room(self, e: Expr) -> Poly | None:
        """A value that is at least 0 where ``e``, a comparison of indices, holds, and only there; else None."""
        if not isinstance(e, Compare) or e.a.dtype != i64 or e.lanes != 1 or e.op not in AT_LEAST:
            return None
        return self.simplifier.poly(AT_LEAST[e.op](e.a, e.b))

    def without(self) -> Callable[[Expr], Expr]:
        """The map that removes the clamps and decides the comparisons implied by them."""

        def one(e: Expr) -> Expr | None:
            found = self.slack(e)
            if found is not None and found[0] in self.slacks:
                return found[1]
            known = self.room(e)
            if known is not None and any(_at_least(known, p) for p in self.slacks):
                return const(True, boolean)
            return None

        return expr_map(one)


def _at_least(p: Poly, q: Poly) -> bool:
    """True if p equals q plus a non-negative constant."""
    more = poly.constant_value(poly.add(p, q, -1))
    return more is not None and more >= 0


AT_LEAST: dict[str, Callable[[Expr, Expr], Expr]] = {
    "ge": lambda a, b: a - b,
    "gt": lambda a, b: a - b - 1,
    "le": lambda a, b: b - a,
    "lt": lambda a, b: b - a - 1,
}
"""A comparison holds exactly if this is at least zero."""
