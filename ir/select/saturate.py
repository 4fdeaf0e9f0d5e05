"""Rules applied in rounds until nothing is new, within limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.rule import Limits, Rule


@dataclass(frozen=True, slots=True)
class Search:
    """The record of a search: rounds, nodes, seconds, and how often each rule found two classes equal."""

    rounds: int
    nodes: int
    seconds: float
    joined: tuple[tuple[str, int], ...]


def saturate(g: EGraph, rules: Sequence[Rule], limits: Limits | None = None) -> Search:
    """Apply ``rules`` until the graph is saturated. Raises SelectionLimitError, which names the rules that grew."""
    limits = limits or Limits()
    g.most_nodes = limits.nodes
    started = time.perf_counter()
    by_root: dict[str, list[Rule]] = {}
    for rule in rules:
        for root in rule.root.split():
            by_root.setdefault(root, []).append(rule)
    joined: dict[str, int] = {}
    done: dict[tuple[str, Node], object] = {}
    for count in range(1, limits.rounds + 1):
        found: list[tuple[int, int, str]] = []
        for c, node in g:
            for rule in by_root.get(node.op, ()):
                seen = tuple((a, len(g.nodes(a)), g.facts(a)) for a in map(g.find, node.args))
                if done.get((rule.name, node)) == seen:
                    continue
                done[rule.name, node] = seen
                g.rule = rule.name
                found += [(c, equal, rule.name) for equal in rule.rewrite(g, node)]
            if time.perf_counter() - started > limits.seconds:
                raise g.too_much(f"more than {limits.seconds} s")
        new = 0
        for c, equal, name in found:
            if g.join(c, equal):
                joined[name] = joined.get(name, 0) + 1
                new += 1
        g.rebuild()
        if not new:
            g.rule = ""
            return Search(count, len(g), time.perf_counter() - started, tuple(joined.items()))
    raise g.too_much(f"more than {limits.rounds} rounds")
