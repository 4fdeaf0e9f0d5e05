"""Lifting: dot products found in sums of products."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.instances import index, lanes, product, value, wide
from taskmap.ir.select.rule import Rule
from taskmap.ir.select.terms import Term, cast, load, total
from taskmap.ir.types import bf16, f32, i8, i16, i32, u8


def multiply_add(g: EGraph, node: Node) -> Iterator[int]:
    """c + a * b = dot(1; c, a, b)"""
    c, x = node.args
    if g.facts(c).layout is None:
        for mul in g.nodes(x, "mul"):
            yield g.add("dot", (1,), (c, *mul.args))


def accumulate(g: EGraph, node: Node) -> Iterator[int]:
    """c + total(n; a * b) = dot(lanes / n; c, a, b)"""
    c, x = node.args
    for sums in g.nodes(x, "total"):
        for mul in g.nodes(sums.args[0], "mul"):
            yield g.add("dot", (g.facts(sums.args[0]).lanes // sums.data[0],), (c, *mul.args))


def from_zero(g: EGraph, node: Node) -> Iterator[int]:
    """total(n; a * b) = dot(lanes / n; 0, a, b)"""
    (n,), (x,) = node.data, node.args
    facts = g.facts(x)
    for mul in g.nodes(x, "mul"):
        zero = g.add("broadcast", (n,), (g.add("const", (0, facts.dtype)),))
        yield g.add("dot", (facts.lanes // n,), (zero, *mul.args))


def narrow(g: EGraph, node: Node) -> Iterator[int]:
    """dot(k; c, cast(a), cast(b)) = dot(k; c, a, b), if the casts are to c's type"""
    c, a, b = node.args
    wanted = g.facts(c).dtype
    lefts = [n.args[0] for n in g.nodes(a, "cast") if n.data[0] == wanted]
    rights = [n.args[0] for n in g.nodes(b, "cast") if n.data[0] == wanted]
    for left in (*lefts, a):
        for right in (*rights, b):
            if (left, right) != (a, b):
                yield g.add("dot", node.data, (c, left, right))


def successive(g: EGraph, node: Node) -> Iterator[int]:
    """dot(k; dot(k; c, a, b), x, y) = dot(2k; c, a and x interleaved, b and y interleaved)"""
    (k,), (c, x, y) = node.data, node.args
    if k > 2:
        return
    for inner in g.nodes(c, "dot"):
        first, a, b = inner.args
        types = [g.facts(z).dtype for z in (a, b, x, y)]
        if inner.data[0] == k and types[:2] == types[2:]:
            lanes = g.facts(x).lanes
            order = tuple(
                z for at in range(0, lanes, k) for z in (*range(at, at + k), *range(lanes + at, lanes + at + k))
            )
            yield g.add("dot", (2 * k,), (first, _woven(g, a, x, order), _woven(g, b, y, order)))


def _woven(g: EGraph, a: int, b: int, order: tuple[int, ...]) -> int:
    return g.add("pick", (order,), (g.add("concat", (), (a, b)),))


def _multiply_add(rng: Random) -> Term:
    n, dtype = lanes(rng), rng.choice([f32, i32])
    return Term("add", (), (wide(rng, n, dtype), product(rng, n, dtype)))


def _sums(rng: Random) -> tuple[Term, Term]:
    n, k, dtype = lanes(rng), rng.choice([1, 2, 4]), rng.choice([f32, i32])
    return wide(rng, n, dtype), total(n, product(rng, n * k, dtype))


def _cast_dot(rng: Random) -> Term:
    n, k = lanes(rng), rng.choice([1, 2])
    c, kinds = rng.choice([(f32, (bf16,)), (i32, (i8, u8, i16))])
    to = rng.choice([c, c, i8])
    sides = [cast(to, value(rng, n * k, rng.choice(kinds))) for _ in range(2)]
    return Term("dot", (k,), (value(rng, n, c), *sides))


def _two_dots(rng: Random) -> Term:
    n, k = lanes(rng), rng.choice([1, 2])
    c, a = rng.choice([(f32, bf16), (i32, u8)])

    def side(name: str) -> Term:
        return load(name, a, index(rng, n * k))

    inner = Term("dot", (k,), (value(rng, n, c), side("a"), side("b")))
    return Term("dot", (k,), (inner, side("a"), side("b")))


LIFTING: tuple[Rule, ...] = (
    Rule("lift-multiply-add", "lifting", "add", multiply_add, _multiply_add),
    Rule("lift-sums", "lifting", "add", accumulate, lambda r: Term("add", (), _sums(r))),
    Rule("lift-sums-from-zero", "lifting", "total", from_zero, lambda r: _sums(r)[1]),
    Rule("narrow-operands", "lifting", "dot", narrow, _cast_dot),
    Rule("join-successive", "lifting", "dot", successive, _two_dots),
)
