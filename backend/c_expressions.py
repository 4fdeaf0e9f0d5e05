"""The common base of expressions as C and as CUDA C++ text."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Generic, TypeVar

from taskmap.ir.errors import CodegenError
from taskmap.ir.nodes import Binary, Compare, Const, Expr, Select, Unary, Var
from taskmap.ir.visit import walk_exprs

Text = TypeVar("Text")
"""The text of an expression, with the facts that its context needs."""

LEAST_I64 = "(-9223372036854775807LL - 1)"
"""The smallest i64: C has no literal for it, only the negation of one that is too large."""


@lru_cache(maxsize=64)
def _method(kind: str) -> str:
    return f"_{kind.lower()}"


@dataclass(slots=True)
class ExpressionWriter(Generic[Text]):
    """The expressions of one kernel; a subclass has a method for each class of nodes, named after it: _load, _select,
    ...

    indices: the kernel's loop variables, sizes and workers. Arithmetic on these alone does not overflow, and neither
    does arithmetic within an address. needs_error becomes true when an index is checked.
    """

    LANGUAGE: ClassVar[str]

    indices: set[Var] = field(default_factory=set)
    needs_error: bool = False
    _plain: dict[Expr, bool] = field(default_factory=dict)
    _addressing: bool = False

    def written(self, e: Expr) -> Text:
        """An expression as text, by the method of its node. Raises CodegenError if there is none."""
        method = getattr(self, _method(type(e).__name__), None)
        if method is None:
            raise CodegenError(
                f"{type(e).__name__} cannot be written in {self.LANGUAGE}; a lowering pass should have removed it"
            )
        text: Text = method(e)
        return text

    def within_address(self, e: Expr, addressing: bool = True) -> Text:
        """An expression whose value is an address or an extent; or (not ``addressing``) one inside an address that is a
        value of its own."""
        before, self._addressing = self._addressing, addressing
        text = self.written(e)
        self._addressing = before
        return text

    def is_index(self, e: Expr) -> bool:
        """True if ``e`` is arithmetic on loop variables and sizes alone."""
        known = self._plain.get(e)
        if known is None:
            leaves = (x for x in walk_exprs(e) if not isinstance(x, (Const, Binary, Unary, Select, Compare)))
            known = self._plain[e] = all(isinstance(x, Var) and x in self.indices for x in leaves)
        return known
