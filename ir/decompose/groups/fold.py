"""Folds: leaves of sums that combine what a tree does not know, such as pairs, or several sums of the same elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.decompose.groups.thread_group import ThreadGroup
from taskmap.ir.expressions import Expr


class Fold(ABC):
    """The statements of a sum, by those who know its elements, which are in no memory. Every thread runs them; the tree
    says which elements it takes, and in which order."""

    @abstractmethod
    def begin(self, b: Builder, ranges: Simplifier, group: ThreadGroup, at: Sequence[Expr]) -> None:
        """Before the first element. group: the threads that take elements of the same result, which is ``at``. ranges:
        what is known of variables."""

    @abstractmethod
    def element(self, at: Expr) -> None:
        """The element number ``at`` of the sum."""

    @abstractmethod
    def end_part(self) -> None:
        """After each part that is divided into shorter ones."""

    @abstractmethod
    def end(self) -> None:
        """After the last element: the threads of the group combine what they have."""
