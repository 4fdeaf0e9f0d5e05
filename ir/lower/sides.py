"""Sides: a vector with all lanes on the same side of a choice between loads computes only that side.

for l in vector(16): y[l] = select(c + l < n, a[min(c + l, n - 1)], b[max(c + l - n, 0)])     ->
if c + 15 < n:   for l in vector(16): y[l] = a[min(c + l, n - 1)]       its clamp goes with the interior
elif c >= n:     for l in vector(16): y[l] = b[max(c + l - n, 0)]
else:            for l in vector(16): y[l] = select(...)                where the two parts join
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import compare, const, constant_value, index
from taskmap.ir.lower.conditions import FLAT, KernelPass
from taskmap.ir.lower.peel import AT_LEAST
from taskmap.ir.nodes import Body, Compare, Expr, For, If, Kernel, Let, Load, LoopKind, Select, Stmt, Store, Var
from taskmap.ir.types import boolean, i64
from taskmap.ir.visit import expr_map, fresh, map_body, substitute, walk_exprs

_MOST_CHOICES = 8
"""The limit per loop; each choice makes a copy of the loop."""


@dataclass(frozen=True, slots=True)
class SplitSides(KernelPass):
    """Vector loops that choose between loads get a copy for each side."""

    name = "split-sides"
    before = "conditions are simplified"
    after = "a vector loop that chooses between loads has a copy for each side, under a test"
    why_here = "before split-interior, which removes the clamps of the remaining side"
    requires = (FLAT,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel, with its choosing vector loops under tests."""

        def one(s: Stmt) -> Body | None:
            if not isinstance(s, For) or s.kind is not LoopKind.VECTOR:
                return None
            made, _ = _split(s, _MOST_CHOICES)
            return None if made == (s,) else made

        return replace(kernel, body=map_body(kernel.body, one))


def _split(loop: For, most: int) -> tuple[Body, int]:
    """The loop, or tests around copies of it; and how many of the ``most`` allowed choices remain."""
    choice = next(_choices(loop), None) if most else None
    if choice is None:
        return (loop,), most
    holds, most = _split(_decided(loop, choice, True), most - 1)
    fails, most = _split(_decided(loop, choice, False), most)
    otherwise: Body = (loop,)
    if choice.varies:
        otherwise = (If(compare("lt", choice.most, index(0)), fails, otherwise, loop.source),)
    else:
        otherwise = fails
    return (If(compare("ge", choice.least, index(0)), holds, otherwise, loop.source),), most


@dataclass(frozen=True, slots=True)
class _Choice:
    """A comparison that holds if a value is at least 0, with that value's minimum and maximum over the lanes."""

    condition: Compare
    least: Expr
    most: Expr
    varies: bool


@dataclass(slots=True)
class _Flat:
    """A vector loop of Lets and stores. loading: names that depend on loads. own: names that vary from lane to lane."""

    loop: For
    loading: set[Var] = field(default_factory=set)
    own: set[Var] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.own.add(self.loop.var)
        for s in self.loop.body:
            if isinstance(s, Let):
                self.own.add(s.var)
                if self.loads(s.value):
                    self.loading.add(s.var)

    def loads(self, e: Expr) -> bool:
        return any(isinstance(x, Load) or x in self.loading for x in walk_exprs(e))


def _choices(loop: For) -> Iterator[_Choice]:
    """The comparisons that choose between loads and are linear in the lane."""
    lanes = constant_value(loop.extent)
    if lanes is None or not all(isinstance(s, (Let, Store)) for s in loop.body):
        return
    selects = [e for e in walk_exprs(loop.body) if isinstance(e, Select)]
    if not selects:
        return
    flat, simplifier = _Flat(loop), Simplifier()
    for e in selects:
        if not (flat.loads(e.a) and flat.loads(e.b)):
            continue
        for c in walk_exprs(e.cond):
            if not isinstance(c, Compare) or c.op not in AT_LEAST or c.a.dtype != i64 or c.lanes != 1:
                continue
            room = simplifier.poly(AT_LEAST[c.op](c.a, c.b))
            step = poly.linear_coefficient(room, loop.var)
            others = {x for m in room for atom in m if atom is not loop.var for x in walk_exprs(atom)}
            if step is None or others & flat.own or any(isinstance(x, Load) for x in others):
                continue
            ends = [simplifier(substitute(poly.to_expr(room), {loop.var: index(at)})) for at in (0, int(lanes) - 1)]
            least, most = ends if step >= 0 else ends[::-1]
            yield _Choice(c, least, most, step != 0)


def _decided(loop: For, choice: _Choice, side: bool) -> For:
    """The loop with the comparison decided, and without code that only the other side needs."""
    known = const(side, boolean)
    rewrite = expr_map(lambda e: known if e == choice.condition else None)
    (made,) = fresh((replace(loop, body=_needed(map_body(loop.body, expr=rewrite))),))
    assert isinstance(made, For)
    return made


def _needed(body: Body) -> Body:
    """The body without unused names."""
    used: set[Expr] = set()
    kept: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, Let) and s.var not in used:
            continue
        kept.append(s)
        used.update(walk_exprs(s))
    return tuple(reversed(kept))
