"""Both sides of every rule are equal, and a wrong version of each rule is caught."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from taskmap.ir.interp.terms import Memory, value_of
from taskmap.ir.select.axioms import AXIOMS
from taskmap.ir.select.choose import rules_of
from taskmap.ir.select.egraph import EGraph
from taskmap.ir.select.rule import KINDS, Rewrite, Rule
from taskmap.ir.select.terms import Term
from tests.ir.select.entries import TABLE
from tests.ir.select.mutants import MUTANTS

RULES = rules_of(TABLE)
INSTANCES = 1000


def loads(term: Term) -> set[str]:
    own = {term.data[0]} if term.op == "load" else set()
    return own.union(*(loads(a) for a in term.args)) if term.args else own


def memory(term: Term, rng: Random) -> Memory:
    """Small integers: exact in every type and every order of summation."""
    generator = np.random.default_rng(rng.randrange(1 << 30))
    symbols = {"x": rng.randint(0, 30), "s": rng.randint(0, 9)}
    return Memory(symbols, {name: generator.integers(-3, 4, 193) for name in sorted(loads(term))})


def sides(rewrite: Rewrite, term: Term) -> list[Term]:
    """The other sides of a rule at the root of ``term``."""
    g = EGraph()
    root = g.insert(term)
    found = []
    for node in g.nodes(root):
        for equal in rewrite(g, node):
            other = g.term(equal)
            assert other is not None
            found.append(other)
    return found


def disagreements(rewrite: Rewrite, rule: Rule, instances: int) -> tuple[int, int]:
    """The number of instances that the rule applied to, and the number of results that differ."""
    rng = Random(rule.name)
    applied = wrong = 0
    for _ in range(instances):
        term = rule.instance(rng)
        found = sides(rewrite, term)
        applied += bool(found)
        where = memory(term, rng)
        for other in found:
            wrong += not np.array_equal(value_of(term, where), value_of(other, where))
    return applied, wrong


def fuzzed() -> list[Rule]:
    """Every rule; of the entries, which share one implementation, those that differ in kind."""
    entries = {
        "by fma_f32x4",
        "by fma_f64x2",
        "by move_i8x4",
        "by dot_bf16x4",
        "by dot_u8x4",
        "by outer_f32",
        "by turned_bf16",
    }
    return [r for r in RULES if r.kind != "lowering" or r.name in entries]


@pytest.mark.parametrize("rule", fuzzed(), ids=lambda r: r.name)
def test_both_sides_are_equal(rule: Rule) -> None:
    applied, wrong = disagreements(rule.rewrite, rule, INSTANCES)
    assert wrong == 0
    more = 0
    while applied < INSTANCES:  # some instances lack what the rule looks for
        more += 1
        assert more < 12, f"{rule.name} applies to few of its instances"
        extra, wrong = disagreements(
            rule.rewrite, Rule(rule.name + str(more), rule.kind, rule.root, rule.rewrite, rule.instance), INSTANCES
        )
        assert wrong == 0
        applied += extra


@pytest.mark.parametrize("rule", fuzzed(), ids=lambda r: r.name)
def test_a_wrong_version_is_caught(rule: Rule) -> None:
    family = "by entry" if rule.name.startswith("by ") else rule.name
    _, wrong = disagreements(MUTANTS[family](rule.rewrite), rule, 300)
    assert wrong > 0


def test_every_kind_has_rules() -> None:
    assert {r.kind for r in RULES} == set(KINDS)
    assert len({r.name for r in RULES}) == len(RULES)
    assert all(r.law for r in RULES)
    assert all("cast" not in r.name for r in AXIOMS if r.root == "total")  # the sum of a cast is no cast of a sum
