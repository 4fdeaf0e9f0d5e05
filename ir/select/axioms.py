"""Axioms: equal ways to write a statement. They undo what a simplifier, or another author, wrote otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.instances import lanes, product, value, wide
from taskmap.ir.select.rule import Rule
from taskmap.ir.select.terms import Term, broadcast, cast, total
from taskmap.ir.types import DType, bf16, f16, f32, f64, i8, i16, i32, i64, u8

_HOLDS: dict[DType, tuple[DType, ...]] = {
    u8: (i16, i32, i64, f16, f32, f64), i8: (i16, i32, i64, f16, bf16, f32, f64), i16: (i32, i64, f32, f64),
    i32: (i64, f64), bf16: (f32, f64), f16: (f32, f64), f32: (f64,),
}  # fmt: skip
"""The types that hold every value of a type."""


def commute(g: EGraph, node: Node) -> Iterator[int]:
    """a + b = b + a, a * b = b * a"""
    yield g.add(node.op, (), (node.args[1], node.args[0]))


def flatten(g: EGraph, node: Node) -> Iterator[int]:
    """broadcast(m; broadcast(n; x)) = broadcast(n * m; x)"""
    for inner in g.nodes(node.args[0], "broadcast"):
        yield g.add("broadcast", (inner.data[0] * node.data[0],), inner.args)


def once(g: EGraph, node: Node) -> Iterator[int]:
    """broadcast(1; x) = x, total(lanes; x) = x"""
    if node.data[0] == (1 if node.op == "broadcast" else g.facts(node.args[0]).lanes):
        yield node.args[0]


def into_load(g: EGraph, node: Node) -> Iterator[int]:
    """broadcast(n; load(i)) = load(broadcast(n; i))"""
    for inner in g.nodes(node.args[0], "load"):
        yield g.add("load", inner.data, (g.add("broadcast", node.data, inner.args),))


def into_cast(g: EGraph, node: Node) -> Iterator[int]:
    """broadcast(n; cast(x)) = cast(broadcast(n; x))"""
    for inner in g.nodes(node.args[0], "cast"):
        yield g.add("cast", inner.data, (g.add("broadcast", node.data, inner.args),))


def out_of_cast(g: EGraph, node: Node) -> Iterator[int]:
    """cast(broadcast(n; x)) = broadcast(n; cast(x))"""
    for inner in g.nodes(node.args[0], "broadcast"):
        yield g.add("broadcast", inner.data, (g.add("cast", node.data, inner.args),))


def into_pair(g: EGraph, node: Node) -> Iterator[int]:
    """broadcast(n; x * y) = broadcast(n; x) * broadcast(n; y), and so for + and -"""
    for op in ("add", "sub", "mul"):
        for inner in g.nodes(node.args[0], op):
            yield g.add(
                op, (), (g.add("broadcast", node.data, inner.args[:1]), g.add("broadcast", node.data, inner.args[1:]))
            )


def through(g: EGraph, node: Node) -> Iterator[int]:
    """cast(t; cast(u; x)) = cast(t; x), if u holds every value of x's type"""
    for inner in g.nodes(node.args[0], "cast"):
        if inner.data[0] in _HOLDS.get(g.facts(inner.args[0]).dtype, ()):
            yield g.add("cast", node.data, inner.args)


def to_own_type(g: EGraph, node: Node) -> Iterator[int]:
    """cast(t; x) = x, if x has type t"""
    if g.facts(node.args[0]).dtype == node.data[0]:
        yield node.args[0]


def twice(g: EGraph, node: Node) -> Iterator[int]:
    """total(n; total(m; x)) = total(n; x)"""
    for inner in g.nodes(node.args[0], "total"):
        yield g.add("total", node.data, inner.args)


def _n(rng: Random) -> int:
    return rng.randint(1, 4)


def _narrow_then_wide(rng: Random) -> Term:
    kind = rng.choice([i8, u8, bf16])
    between = rng.choice([u8, *_HOLDS[kind]])
    return cast(rng.choice([i16, i32, f32, f64]), cast(between, value(rng, lanes(rng), kind)))


def _two(rng: Random) -> Term:
    n = lanes(rng)
    dtype = rng.choice([f32, i32])
    return Term(rng.choice(["add", "sub", "mul"]), (), (wide(rng, n, dtype), wide(rng, n, dtype)))


def _commuting(op: str) -> Rule:
    def instance(rng: Random) -> Term:
        n = lanes(rng)
        return Term(op, (), (wide(rng, n, f32), wide(rng, n, f32)))

    return Rule(f"commute-{op}", "axiom", op, commute, instance)


def _twice(rng: Random) -> Term:
    n, m = _n(rng), _n(rng)
    return total(n, total(n * m, product(rng, n * m * _n(rng), i32)))


def _own(rng: Random) -> Term:
    x = value(rng, lanes(rng))
    return cast(rng.choice([u8, i16, x.type[0]]), x)


def _nested(rng: Random) -> Term:
    return broadcast(broadcast(value(rng, lanes(rng)), _n(rng)), _n(rng))


def _of_cast(rng: Random) -> Term:
    return broadcast(cast(f32, value(rng, lanes(rng))), _n(rng))


def _of_few(rng: Random) -> Term:
    n = lanes(rng)
    return total(n, wide(rng, n * rng.randint(1, 2)))


AXIOMS: tuple[Rule, ...] = (
    _commuting("add"),
    _commuting("mul"),
    Rule("flatten-broadcast", "axiom", "broadcast", flatten, _nested),
    Rule("broadcast-once", "axiom", "broadcast", once, lambda r: broadcast(value(r, lanes(r)), r.randint(1, 2))),
    Rule("broadcast-into-load", "axiom", "broadcast", into_load, lambda r: broadcast(value(r, lanes(r)), _n(r))),
    Rule("broadcast-into-cast", "axiom", "broadcast", into_cast, _of_cast),
    Rule("cast-of-broadcast", "axiom", "cast", out_of_cast, lambda r: cast(f32, broadcast(value(r, lanes(r)), _n(r)))),
    Rule("broadcast-into-pair", "axiom", "broadcast", into_pair, lambda r: broadcast(_two(r), _n(r))),
    Rule("cast-through", "axiom", "cast", through, _narrow_then_wide),
    Rule("cast-to-own-type", "axiom", "cast", to_own_type, _own),
    Rule("total-once", "axiom", "total", once, _of_few),
    Rule("total-of-total", "axiom", "total", twice, _twice),
)  # fmt: skip
