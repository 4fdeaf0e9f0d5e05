"""Named indices: addresses are expressed in terms of the names that the kernel gives to their parts.

row = block_x * 64                                        row = block_x * 64
a[k * (block_x * 64 + thread // 8) + thread % 8]    ->    a[k * (row + thread // 8) + thread % 8]

Simplification substitutes every name, since terms cancel only then; this pass restores the names that still occur in
the result. The kernel's text then matches what its author wrote, and loop-invariant parts are computed outside loops.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Monomial, Poly
from taskmap.ir.construct import binary, const
from taskmap.ir.lower.conditions import FLAT, NO_VECTOR_LOOPS, KernelPass
from taskmap.ir.nodes import Body, Call, Const, Expr, Intrinsic, Kernel, Let, Load, Stmt, Var
from taskmap.ir.types import i64
from taskmap.ir.visit import ExprMap, children, map_stmt_exprs, rebuild, stmt_bodies, walk_exprs, with_bodies


@dataclass(frozen=True, slots=True)
class NameIndices(KernelPass):
    """Index arithmetic in terms of the Lets around it. Unused Lets are removed."""

    name = "name-indices"
    before = "index arithmetic uses no Let: Tidy has substituted all of them, and kept the statements"
    after = "no expression holds the value of a Let that is visible"
    why_here = "last: it undoes what simplification had to do"
    requires = (FLAT, NO_VECTOR_LOOPS)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel, shorter."""
        body = _body(kernel.body, ())
        while True:
            used: set[Expr] = {e for e in walk_exprs(body) if isinstance(e, Var)}
            fewer = _without_unused(body, used)
            if fewer is body:
                return kernel if body is kernel.body else replace(kernel, body=body)
            body = fewer


@dataclass(frozen=True, slots=True)
class _Name:
    var: Var
    value: Poly


def is_index(value: Expr) -> bool:
    """True if a Let's value is pure index arithmetic, which may be substituted and named again."""
    plain = value.dtype == i64 and value.lanes == 1 and not isinstance(value, (Const, Var))
    return plain and not any(isinstance(e, (Load, Call, Intrinsic)) for e in walk_exprs(value))


def _body(body: Body, names: tuple[_Name, ...]) -> Body:
    out: list[Stmt] = []
    for s in body:
        naming = _Naming(names)
        new = map_stmt_exprs(s, naming.expr)
        inner = stmt_bodies(s)
        if inner:
            new = with_bodies(new, [_body(b, names) for b in inner])
        out.append(new)
        if isinstance(s, Let) and is_index(s.value):
            names = (*names, _Name(s.var, poly.to_poly(s.value)))
    return tuple(out)


@dataclass(slots=True)
class _Naming:
    """The rewriting of one statement's expressions."""

    names: tuple[_Name, ...]
    memo: dict[Expr, Expr] = field(default_factory=dict)

    def expr(self, e: Expr) -> Expr:
        known = self.memo.get(e)
        if known is None:
            known = self.memo[e] = self.rewrite(e)
        return known

    def rewrite(self, e: Expr) -> Expr:
        if e.dtype == i64 and e.lanes == 1:
            p = poly.to_poly(e)
            if p != {(e,): 1}:
                return _written(self.named(p), self.expr)
            named = self.named(p)
            if named != p:
                return _written(named, self.expr)
        kids = children(e)
        return rebuild(e, [self.expr(k) for k in kids]) if kids else e

    def named(self, p: Poly) -> Poly:
        """``p`` with names in place of their values, as long as each makes it shorter."""
        latest_first = self.names[::-1]
        for name in sorted(latest_first, key=lambda n: -len(n.value)):
            for _ in range(len(p)):
                shorter = _with(p, name)
                if shorter is None:
                    break
                p = shorter
        return p


def _with(p: Poly, name: _Name) -> Poly | None:
    """p = s * r * value + rest as s * r * name + rest, for an integer s and a monomial r, if that is shorter."""
    first = next((m for m in name.value if m), None)
    if first is None:
        return None
    for monomial, coefficient in p.items():
        ratio = poly.without(monomial, first)
        if ratio is None or coefficient % name.value[first]:
            continue
        scale = coefficient // name.value[first]
        scaled = poly.multiply(name.value, {ratio: scale})
        if any(m != ratio and p.get(m) != c for m, c in scaled.items()):
            continue
        candidate = poly.add(poly.add(p, scaled, -1), poly.multiply({ratio: scale}, poly.atom(name.var)))
        if _length(candidate) <= _length(p):
            return candidate
    return None


def _length(p: Poly) -> int:
    """The number of nodes in the terms of a polynomial."""
    return sum(1 + (abs(c) != 1 and bool(m)) + sum(sum(1 for _ in walk_exprs(a)) for a in m) for m, c in p.items())


def _written(p: Poly, atom: ExprMap) -> Expr:
    """The expression of a polynomial: common factors are bracketed out, and larger steps come first."""
    counts: dict[Expr, int] = {}
    for monomial in p:
        for a in dict.fromkeys(monomial):
            if isinstance(a, Var):
                counts[a] = counts.get(a, 0) + 1
    shared = [a for a, n in counts.items() if n > 1]
    if shared:
        factor = max(shared, key=lambda a: (counts[a], -poly.atom_order(a)[0]))
        inside: Poly = {}
        outside: Poly = {}
        for monomial, coefficient in p.items():
            if factor in monomial:
                inside[poly.without(monomial, (factor,)) or ()] = coefficient
            else:
                outside[monomial] = coefficient
        return _sum(outside, atom, binary("mul", _written(inside, atom), atom(factor)))
    steps = Counter(abs(c) for m, c in p.items() if m and abs(c) > 1)
    for step, count in steps.items():
        alike = {m: c // step for m, c in p.items() if m and abs(c) == step}
        if count > 1 and any(c > 0 for c in alike.values()):
            rest = {m: c for m, c in p.items() if m not in alike}
            product = binary("mul", _written(alike, atom), step)
            return binary("add", product, _written(rest, atom)) if len(rest) > 1 else _sum(rest, atom, product)
    return _sum(p, atom, None)


def _sum(p: Poly, atom: ExprMap, total: Expr | None) -> Expr:
    for monomial, coefficient in sorted(p.items(), key=_order):
        term: Expr | None = None
        for a in monomial:
            one = atom(a)
            term = one if term is None else binary("mul", term, one)
        magnitude = coefficient if total is None else abs(coefficient)
        if term is None:
            term = const(magnitude, i64)
        elif magnitude != 1:
            term = binary("mul", term, magnitude)
        total = term if total is None else binary("add" if coefficient > 0 else "sub", total, term)
    return const(0, i64) if total is None else total


def _order(item: tuple[Monomial, int]) -> tuple[bool, bool, int, int, list[tuple[int, str]]]:
    monomial, coefficient = item
    return (not monomial, coefficient < 0, -len(monomial), -abs(coefficient), [poly.atom_order(a) for a in monomial])


def _without_unused(body: Body, used: set[Expr]) -> Body:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Let) and s.var not in used and is_index(s.value):
            continue
        inner = stmt_bodies(s)
        out.append(with_bodies(s, [_without_unused(b, used) for b in inner]) if inner else s)
    same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
    return body if same else tuple(out)
