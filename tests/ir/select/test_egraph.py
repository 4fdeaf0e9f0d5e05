"""The e-graph: congruence, determinism, limits, and extraction compared with brute force."""

from __future__ import annotations

import itertools
from math import prod
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from taskmap.ir.errors import SelectionLimitError, TypeMismatchError
from taskmap.ir.select.axioms import AXIOMS
from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.extract import Cost, cheapest
from taskmap.ir.select.instances import product, wide
from taskmap.ir.select.lifting import LIFTING
from taskmap.ir.select.rule import Limits
from taskmap.ir.select.saturate import saturate
from taskmap.ir.select.supporting import SUPPORTING
from taskmap.ir.select.terms import Term, binary, broadcast, const, load, ramp, total, var
from taskmap.ir.types import f32

OPS = ("add", "sub", "mul")
Joins = list[tuple[int, int]]
NODES = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=14)
JOINS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def grown(nodes: list[tuple[str, int, int]], joins: Joins) -> tuple[EGraph, list[int]]:
    """A graph of loads and operations on earlier nodes, in which some classes were joined."""
    g = EGraph()
    ids = [g.insert(load(name, f32, var(name))) for name in "xyz"]
    for op, a, b in nodes:
        ids.append(g.add(op, (), (ids[a % len(ids)], ids[b % len(ids)])))
    for a, b in joins:
        g.join(ids[a % len(ids)], ids[b % len(ids)])
    g.rebuild()
    return g, ids


def closure(nodes: list[tuple[str, int, int]], joins: Joins) -> list[int]:
    """The least congruence, by trying all pairs until nothing changes: the reference."""
    count = 3 + len(nodes)
    group = list(range(count))
    shape = {3 + i: (op, a % (3 + i), b % (3 + i)) for i, (op, a, b) in enumerate(nodes)}

    def merge(a: int, b: int) -> bool:
        old, new = group[a], group[b]
        if old == new:
            return False
        group[:] = [new if x == old else x for x in group]
        return True

    for a, b in joins:
        merge(a % count, b % count)
    changed = True
    while changed:
        changed = False
        for (i, (op, a, b)), (j, (other, c, d)) in itertools.combinations(shape.items(), 2):
            if op == other and group[a] == group[c] and group[b] == group[d]:
                changed |= merge(i, j)
    return group


@given(NODES, JOINS)
@settings(max_examples=150, deadline=None)
def test_rebuilding_gives_the_least_congruence(nodes: list[tuple[str, int, int]], joins: Joins) -> None:
    g, ids = grown(nodes, joins)
    group = closure(nodes, joins)
    for (i, a), (j, b) in itertools.combinations(enumerate(ids), 2):
        assert (g.find(a) == g.find(b)) == (group[i] == group[j])
    seen: dict[Node, int] = {}
    for c, node in g:
        assert node.args == tuple(map(g.find, node.args))
        assert seen.setdefault(node, c) == c
    assert len(seen) == len(g)


@given(NODES, JOINS)
@settings(max_examples=40, deadline=None)
def test_equal_inputs_give_equal_graphs(nodes: list[tuple[str, int, int]], joins: Joins) -> None:
    first, _ = grown(nodes, joins)
    second, _ = grown(nodes, joins)
    assert list(first) == list(second)


def test_equal_terms_are_stored_once() -> None:
    g = EGraph()
    x = load("x", f32, ramp(var("i"), 1, 4))
    assert g.insert(x) == g.insert(load("x", f32, ramp(var("i"), 1, 4)))
    assert g.insert(x) != g.insert(load("x", f32, ramp(var("i"), 2, 4)))


def test_classes_of_different_types_are_not_joined() -> None:
    g = EGraph()
    x = load("x", f32, ramp(0, 1, 4))
    a, b = g.insert(x), g.insert(broadcast(x, 2))
    with pytest.raises(TypeMismatchError, match="f32x4 was found equal to f32x8"):
        g.join(a, b)
    with pytest.raises(TypeMismatchError, match="add of f32x4, f32x8 has no type"):
        g.add("add", (), (a, b))


def test_indices_that_differ_are_not_joined() -> None:
    g = EGraph()
    with pytest.raises(TypeMismatchError, match="was found equal to"):
        g.join(g.insert(ramp(0, 1, 4)), g.insert(ramp(0, 2, 4)))


WEIGHT = {"add": 3, "sub": 5, "mul": 2, "load": 1}


def weigh(g: EGraph, c: int, node: Node) -> Cost:
    """A cost that knows nothing of instructions."""
    return Cost(issued=WEIGHT.get(node.op, 0), size=1)


def weight(g: EGraph, choice: dict[int, Node], c: int, above: tuple[int, ...] = ()) -> tuple[int, int] | None:
    """The cost of the term of a class if ``choice`` gives the node of each class; None if it contains itself."""
    c = g.find(c)
    if c in above:
        return None
    node = choice[c]
    parts = [weight(g, choice, a, (*above, c)) for a in node.args]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    return WEIGHT.get(node.op, 0) + sum(w for w, _ in known), 1 + sum(n for _, n in known)


@given(NODES.filter(lambda nodes: len(nodes) <= 7), JOINS.filter(lambda joins: len(joins) <= 5))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_extraction_finds_the_cheapest_term(nodes: list[tuple[str, int, int]], joins: Joins) -> None:
    """Brute force: every choice of one node for each class."""
    g, ids = grown(nodes, joins)
    classes = g.classes()
    assume(prod(len(g.nodes(c)) for c in classes) <= 300)
    choices = [dict(zip(classes, picked, strict=True)) for picked in itertools.product(*map(g.nodes, classes))]
    best = cheapest(g, cost=weigh)
    for c in ids:
        costs = [w for choice in choices if (w := weight(g, choice, c)) is not None]
        assert (best.cost(c).issued, best.cost(c).size) == min(costs)


def test_saturation_is_deterministic() -> None:
    runs = []
    for _ in range(2):
        g = EGraph()
        rng = Random(3)
        root = g.insert(Term("add", (), (wide(rng, 4, f32), total(4, product(rng, 8, f32)))))
        search = saturate(g, (*AXIOMS, *LIFTING, *SUPPORTING))
        runs.append((list(g), search.rounds, search.joined, cheapest(g).term(root)))
    assert runs[0] == runs[1]


def growing(limits: Limits) -> None:
    g = EGraph()
    term = load("x", f32, const(0))
    for at in range(1, 9):
        term = binary("add", term, load("x", f32, const(at)))
        term = binary("mul", term, load("y", f32, const(at)))
    g.insert(term)
    saturate(g, (*AXIOMS, *LIFTING, *SUPPORTING), limits)


@pytest.mark.parametrize("limits", [Limits(nodes=45), Limits(rounds=1), Limits(seconds=0.0)])
def test_a_limit_names_the_rules_that_grew(limits: Limits) -> None:
    with pytest.raises(SelectionLimitError, match=r"nodes by rule: (the statement|commute|lift)"):
        growing(limits)
    growing(Limits())
