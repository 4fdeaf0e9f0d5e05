"""Rules applied in rounds until nothing is new, within limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.select.egraph import EGraph
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
    for count in range(1, limits.rounds + 1):
        changed = g.take_changed()
        if not changed:
            g.rule = ""
            return Search(count - 1, len(g), time.perf_counter() - started, tuple(joined.items()))
        found: list[tuple[int, int, str]] = []
        for c in changed:
            for node in g.nodes(c):
                for rule in by_root.get(node.op, ()):
                    g.rule = rule.name
                    found += [(c, equal, rule.name) for equal in rule.rewrite(g, node)]
            if time.perf_counter() - started > limits.seconds:
                raise g.too_much(f"more than {limits.seconds} s")
        for c, equal, name in found:
            if g.join(c, equal):
                joined[name] = joined.get(name, 0) + 1
        g.rebuild()
    raise g.too_much(f"more than {limits.rounds} rounds")
