"""The form of a rule of the search, and the limits of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from taskmap.ir.select.egraph import EGraph, Node
from taskmap.ir.select.terms import Term

__all__ = ["Limits", "Rewrite", "Rule"]

Rewrite = Callable[[EGraph, Node], Iterator[int]]
"""Classes equal to that of a node."""

KINDS = ("axiom", "lifting", "supporting", "lowering")


@dataclass(frozen=True, slots=True)
class Rule:
    """Terms with the operation ``root`` equal the terms that ``rewrite`` builds; its docstring states the law.

    kind: "axiom": another way to write the same; "lifting": towards dot products; "supporting": parts and facts that
    other rules need; "lowering": towards instructions. instance: a random term to which the rule applies, for the test
    that both sides are equal.
    """

    name: str
    kind: str
    root: str
    rewrite: Rewrite
    instance: Callable[[Random], Term]

    @property
    def law(self) -> str:
        """The law that the rule states."""
        return (self.rewrite.__doc__ or "").strip()


@dataclass(frozen=True, slots=True)
class Limits:
    """The most nodes, rounds and seconds of a search; past them it raises SelectionLimitError."""

    nodes: int = 20_000
    rounds: int = 40
    seconds: float = 30.0
