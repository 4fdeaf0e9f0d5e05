"""What a rule of the verifier reports."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.nodes import Stmt


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a kernel breaks a rule, and the statement that does it (None: the kernel as a whole)."""

    why: str
    stmt: Stmt | None = None
