"""The report of a verifier rule."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.nodes import Stmt


@dataclass(frozen=True, slots=True)
class Violation:
    """The reason why a kernel violates a rule, and the statement that does (None: the kernel as a whole)."""

    why: str
    stmt: Stmt | None = None
