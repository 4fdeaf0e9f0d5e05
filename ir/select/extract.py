"""The cheapest term of a class: a cost vector, added up over the term.

    issued        instructions, loads and permutations, each as often as its loop runs it
    wasted        products that an instruction computes and the statement does not need
    instructions  of the table or scalar; of equal sums, the fewest instructions, then the fewest loads
    loads         of registers from memory
    permutations  that put lanes where the instruction takes them
    size          of the term: of equal costs, the plainest form

Costs add up, so the cheapest term of a class consists of the cheapest terms of its arguments: a fixpoint over all nodes
finds it. Terms with operations that no processor executes (a dot product of vectors without an instruction, a sum of
lanes) cost what scalar code would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from taskmap.ir.select.address import Address, value_of
from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.terms import Term


class Cost(NamedTuple):
    """Compared entry by entry, in this order."""

    issued: int = 0
    wasted: int = 0
    instructions: int = 0
    loads: int = 0
    permutations: int = 0
    size: int = 0


def total(costs: Sequence[Cost], times: int = 1) -> Cost:
    """The sum, ``times`` over."""
    return Cost(*(times * sum(column) for column in zip(*costs, strict=True)))


def own_cost(g: EGraph, c: int, node: Node) -> Cost:
    """The cost of a node without its arguments."""
    op, lanes = node.op, g.facts(c).lanes
    if op == "apply":
        return Cost(issued=1, instructions=1, size=1)
    if op == "moved":
        return Cost(issued=1, instructions=1, size=1)
    if op == "tiled":
        return Cost(issued=node.data[1], instructions=node.data[1], size=1)
    if op == "matmul":
        return Cost(issued=4 * prod(node.data), instructions=prod(node.data), size=1)
    if op == "load":
        count = accesses(g.facts(node.args[0]).layout, g.facts(c).dtype.bytes, lanes)
        return Cost(issued=count, loads=count, size=1)
    if op == "dot":  # scalar code: each product loads its operands
        products = lanes * node.data[0]
        return Cost(issued=4 * products, instructions=products, loads=3 * products, size=1)
    if op == "copy":
        return Cost(issued=2 * lanes, instructions=lanes, loads=lanes, size=1)
    if op == "pick" and lanes > 1:
        return Cost(issued=1, permutations=1, size=1)
    if op in ("total", "mul", "add", "sub", "cast"):
        if g.facts(c).layout is not None:
            return Cost(size=1)
        work = lanes if op != "total" else g.facts(node.args[0]).lanes
        scale = 1 if op == "cast" else 4 * work
        return Cost(issued=scale, instructions=scale, size=1)
    return Cost(size=1)


def accesses(layout: Address | None, bytes: int, lanes: int) -> int:
    """The accesses that load one register: one for neighbours, or for a block of up to 8 bytes in all lanes, else one
    per lane."""
    if layout is None:
        return lanes
    digits = layout.digits
    if not digits or (len(digits) == 1 and value_of(digits[0][1]) in (0, 1)):
        return 1
    block = len(digits) == 2 and value_of(digits[0][1]) == 1 and value_of(digits[1][1]) == 0
    return 1 if block and digits[0][0] * bytes in (1, 2, 4, 8) else lanes


@dataclass(frozen=True, slots=True)
class Extraction:
    """The cheapest node of every class, with the cost of its whole term."""

    graph: EGraph
    nodes: dict[int, tuple[Cost, Node]]

    def cost(self, c: int) -> Cost:
        """The cost of the cheapest term of a class."""
        return self.nodes[self.graph.find(c)][0]

    def term(self, c: int) -> Term:
        """The cheapest term of a class."""
        return self._term(self.graph.find(c), {})

    def _term(self, c: int, known: dict[int, Term]) -> Term:
        if c not in known:
            node = self.nodes[c][1]
            known[c] = Term(node.op, node.data, tuple(self._term(self.graph.find(a), known) for a in node.args))
        return known[c]

    def chosen(self, c: int) -> list[Node]:
        """The nodes of the cheapest term, each once, arguments first."""
        found: dict[Node, None] = {}
        seen: set[int] = set()

        def walk(at: int) -> None:
            at = self.graph.find(at)
            if at in seen:
                return
            seen.add(at)
            for a in self.nodes[at][1].args:
                walk(a)
            found[self.nodes[at][1]] = None

        walk(c)
        return list(found)


def cheapest(
    g: EGraph,
    cost: Callable[[EGraph, int, Node], Cost] = own_cost,
) -> Extraction:
    """The cheapest term of every class."""
    best: dict[int, tuple[Cost, Node]] = {}
    own = {(c, node): cost(g, c, node) for c, node in g}
    changed = True
    while changed:
        changed = False
        for (c, node), alone in own.items():
            args = [best.get(g.find(a)) for a in node.args]
            if None in args:
                continue
            times = node.data[1] if node.op == "each" else 1
            whole = total([alone, *(a[0] for a in args if a is not None)], times)
            if c not in best or whole < best[c][0]:
                best[c] = (whole, node)
                changed = True
    return Extraction(g, best)
