"""Decisions about symbolic sizes while a model is read, and the assumptions that justify them.

A model is read with symbolic sizes beside an example: the sizes of the present call. Where a size decides how to read
on (a branch, a dimension that is squeezed if it is 1), the example decides and a check is recorded. The graph is
correct for all sizes that pass all checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taskmap.graph.analysis.size_forms import normal
from taskmap.graph.importers.onnx.read.size_names import SizeNames
from taskmap.ir.construct import compare, const, constant_value, index, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Binary, Dim, Expr, Var
from taskmap.ir.visit import free_vars, substitute


class SizeDecidesError(UnsupportedError):
    """A graph for all sizes would have to know ``sizes``. ``fixed``: one of them is 1, and broadcasting repeats it."""

    sizes: tuple[Dim, ...] = ()
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on symbolic sizes under which the graph is correct: a == b, or a >= b. ``node`` assumes it."""

    a: Dim
    b: Dim
    at_least: bool = False
    node: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.a} {'>=' if self.at_least else '=='} {self.b}"


@dataclass(slots=True)
class Assumptions:
    """The example, and the checks recorded so far. ``node`` is the node being read; ``names`` names sizes, None leaves
    them unnamed."""

    example: Mapping[Var, int] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    node: str = ""
    names: SizeNames | None = None

    def tidy(self, size: Dim) -> Dim:
        """The size in normal form, or its name."""
        return normal(size) if self.names is None else self.names.named(size)

    def value(self, size: Dim) -> int | None:
        """The size's value in the example; None if the example does not determine it."""
        known = static_size(size)
        if known is not None or not isinstance(size, Expr):
            return known
        known_here: dict[Var, Expr] = {}
        for v in free_vars(size):
            number = self._variable(v)
            if number is not None:
                known_here[v] = const(number, v.dtype)
        found = substitute(size, known_here)
        assert isinstance(found, Expr)
        return static_size(found)

    def _variable(self, v: Var) -> int | None:
        form = self.names.forms.get(v) if self.names is not None else None
        return self.example.get(v) if form is None else self.value(form)

    def same(self, a: Dim, b: Dim) -> None:
        """Records the assumption that a equals b."""
        self._note(Check(a, b, node=self.node))

    def at_least(self, a: Dim, b: Dim) -> None:
        """Records the assumption that a is at least b, unless it follows from sizes being positive."""
        least, most = at_least(a), static_size(b)
        if least is None or most is None or least < most:
            self._note(Check(a, b, at_least=True, node=self.node))

    def _note(self, check: Check) -> None:
        if check not in self.checks:
            self.checks.append(check)

    def holds(self, op: str, a: Dim, b: Dim) -> bool | None:
        """True if a comparison (eq, ne, lt, le, gt, ge) of sizes holds in the example; the outcome is recorded as an
        assumption. None without an example."""
        known = constant_value(compare(op, index(a), index(b)))
        if known is not None:
            return bool(known)
        x, y = self.value(a), self.value(b)
        if x is None or y is None:
            return None
        if op in ("eq", "ne"):
            if x == y:
                self.same(a, b)
            elif x > y:
                self.at_least(a, b + 1)
            else:
                self.at_least(b, a + 1)
            return (x == y) == (op == "eq")
        if op in ("gt", "le"):  # a > b is b < a
            a, b, x, y = b, a, y, x
        less = x < y
        if less:
            self.at_least(b, a + 1)
        else:
            self.at_least(a, b)
        return less == (op in ("lt", "gt"))


def at_least(size: Dim) -> int | None:
    """A lower bound of a size whose variables are at least 1; None if simple arithmetic finds none."""
    known = static_size(size)
    if known is not None:
        return known
    if isinstance(size, Var):
        return 1
    if not isinstance(size, Binary):
        return None
    if size.op == "mod":
        divisor = at_least(size.b)
        return 0 if divisor is not None and divisor > 0 else None
    a, b = at_least(size.a), at_least(size.b)
    if size.op == "max":
        bounds = [n for n in (a, b) if n is not None]
        return max(bounds, default=None)
    if a is None or b is None:
        return None
    if size.op == "add":
        return a + b
    if size.op == "min":
        return min(a, b)
    if size.op == "mul" and a >= 0 and b >= 0:
        return a * b
    if size.op == "floordiv" and a >= 0 and b > 0:
        divisor = static_size(size.b)
        return a // divisor if divisor is not None else 0
    return None


def decides(what: str, sizes: Sequence[Dim]) -> SizeDecidesError:
    """The error for ``what``, which cannot be read without knowing the sizes."""
    error = SizeDecidesError(what)
    error.sizes = tuple(n for n in sizes if static_size(n) is None)
    return error
