"""The choice of instructions for one statement, with the record of how it was made."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.errors import LoweringError
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.select.axioms import AXIOMS
from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.extract import Cost, cheapest
from taskmap.ir.select.lifting import LIFTING
from taskmap.ir.select.lowering import lowering_rules, move_entries, operand_flaw, product_entries
from taskmap.ir.select.rule import Limits, Rule
from taskmap.ir.select.saturate import Search, saturate
from taskmap.ir.select.supporting import SUPPORTING, columns_in_pieces
from taskmap.ir.select.terms import Term, instructions_of
from taskmap.ir.target import Target

__all__ = ["Choice", "choose", "demand"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A statement and its cheapest form.

    entries: those that the search had. rules: those that wrote a part of the chosen term, in the order of its parts.
    """

    statement: Term
    term: Term
    cost: Cost
    search: Search
    seconds: float
    rules: tuple[str, ...]
    entries: tuple[Instruction, ...]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions of the chosen term."""
        return instructions_of(self.term)

    @property
    def useful(self) -> float:
        """The share of the products that the instructions compute and the statement needs."""
        needed, computed = _products(self.statement), _products(self.term)
        return 1.0 if not computed else min(1.0, needed / computed)

    @property
    def names(self) -> str:
        """The instructions by name."""
        return ", ".join(i.name for i in self.instructions) or "scalar code"

    def second(self) -> Choice | None:
        """The choice without these instructions, by a search of its own; None if the chosen form has none."""
        used = self.instructions
        return _choose(self.statement, tuple(e for e in self.entries if e not in used), Limits()) if used else None

    def __str__(self) -> str:
        return (
            f"{self.names}: {self.cost.issued} issued; rules: {', '.join(self.rules) or 'none'}; "
            f"{self.search.nodes} nodes, {self.search.rounds} rounds, {self.seconds * 1e3:.1f} ms, "
            f"{self.useful:.0%} of products useful"
        )


@lru_cache(maxsize=256)
def rules_of(entries: tuple[Instruction, ...]) -> tuple[Rule, ...]:
    """All rules of a search with these instructions."""
    return (*AXIOMS, *LIFTING, *SUPPORTING, columns_in_pieces(entries), *lowering_rules(entries))


def choose(
    statement: Term,
    target: Target,
    table: tuple[Instruction, ...],
    limits: Limits | None = None,
    further: tuple[Rule, ...] = (),
) -> Choice:
    """The cheapest form of ``statement`` on ``target``; remembered for each statement. further: rules to try besides.

    Raises SelectionLimitError for a statement whose search grows past the limits.
    """
    return _choose(statement, tuple(e for e in table if e.targets(target)), limits or Limits(), further)


def demand(statement: Term, unit: Instruction, target: Target, table: tuple[Instruction, ...]) -> Choice:
    """The cheapest form of ``statement`` in which ``unit`` computes all products.

    Raises LoweringError, which names the operand and its layout digits, if the unit cannot compute the statement.
    """
    if not unit.targets(target):
        raise LoweringError(f"{target} does not have {unit.name}", why=f"it takes {unit.targets}.")
    others = tuple(e for e in table if not isinstance(e.spec, MatMulSpec))
    choice = choose(statement, target, (*others, unit))
    needed = _products(statement)
    if _products(choice.term, scalar=False) < needed or not needed:
        why = _flaw(statement, unit) if needed else "it contains no sum of products."
        raise LoweringError(f"{unit.name} cannot compute the statement", why=why)
    return choice


@lru_cache(maxsize=4096)
def _choose(
    statement: Term, entries: tuple[Instruction, ...], limits: Limits, further: tuple[Rule, ...] = ()
) -> Choice:
    started = time.perf_counter()
    entries = _relevant(statement, entries)
    g = EGraph()
    root = g.insert(statement)
    search = saturate(g, (*rules_of(entries), *further), limits)
    best = cheapest(g)
    term = best.term(root)
    rules = tuple(dict.fromkeys(rule for node in best.chosen(root) if (rule := g.origin.get(node))))
    return Choice(statement, term, best.cost(root), search, time.perf_counter() - started, rules, entries)


def _relevant(statement: Term, entries: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The entries that could compute a part of the statement, by its operations and types: the rules of the others
    would be tried in vain."""
    types, ops = set(), set()
    for t in _walk(statement):
        ops.add(t.op)
        types.add(t.type[0])
    products = product_entries(entries) if ops & {"mul", "dot", "total"} else ()
    moves = move_entries(entries) if "copy" in ops else ()
    return tuple(
        e
        for e in (*products, *moves)
        if ({e.spec.a, e.spec.b, e.spec.c} <= types if isinstance(e.spec, MatMulSpec) else e.spec.dtype in types)  # type: ignore[union-attr]
    )


def _walk(term: Term) -> list[Term]:
    found = [term]
    for t in found:
        found.extend(t.args)
    return found


def _products(term: Term, scalar: bool = True) -> int:
    """The products that a term computes."""
    if term.op == "each":
        return int(term.data[1]) * sum(_products(a, scalar) for a in term.args)
    count = sum(_products(a, scalar) for a in term.args)
    if term.op == "apply":
        return count + int(term.data[0].work)
    if not scalar:
        return count
    if term.op == "dot":
        return count + term.type[1] * int(term.data[0])
    return count + (term.type[1] if term.op == "mul" and term.type[0].name != "i64" else 0)


def _flaw(statement: Term, unit: Instruction) -> str:
    """The reason why ``unit`` does not compute the dot products in a statement: of the oldest among the forms that
    come nearest to what it takes."""
    g = EGraph()
    g.insert(statement)
    saturate(g, (*AXIOMS, *LIFTING, *SUPPORTING))
    found = [_flaws(g, node, unit) for _, node in g if node.op == "dot"]
    _, reasons = max(found, key=lambda pair: pair[0], default=(0, ["its products are not summed."]))
    return "\n".join(reasons)


def _flaws(g: EGraph, node: Node, unit: Instruction) -> tuple[int, list[str]]:
    """The flaws of one dot product, and the number of kinds of flaws that it does not have."""
    spec = unit.spec
    assert isinstance(spec, MatMulSpec)
    (k,), operands = node.data, {name: g.facts(c) for name, c in zip("cab", node.args, strict=True)}
    wanted = {"c": spec.c, "a": spec.a, "b": spec.b}
    types = [
        f"{x} is {operands[x].dtype}, and {unit.name} takes {t}." for x, t in wanted.items() if operands[x].dtype != t
    ]
    if types:
        return 0, types
    if k % spec.k:
        return 1, [f"its sums have {k} products, not a multiple of {spec.k}."]
    if operands["c"].lanes % (spec.m * spec.n):
        return 2, [f"it has {operands['c'].lanes} lanes, and {unit.name} computes {spec.m * spec.n}."]
    flaws = [operand_flaw(unit, name, operands[name].alike, k) for name in "ab"]
    return 3, [flaw for flaw in flaws if flaw]
