"""One graph of an ONNX model for all sizes: the sizes that its inputs leave open, and those it is valid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskmap.backend.program.sizes import sizes_function
from taskmap.graph.importers.onnx.read.assumptions import Check
from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.graph.nodes import Node
from taskmap.ir.construct import const, static_size
from taskmap.ir.nodes import Dim, Expr, Var

_NO_NUMBER = (ArithmeticError, ValueError)
"""Errors in computing sizes: a quotient by 0, or a floating-point size that is infinite or NaN."""
Declared = Sequence[tuple[int | str | None, ...] | None]
"""For each input, the sizes that the model declares; None for an input without a declared rank."""


def variables(declared: Declared) -> tuple[list[tuple[Dim, ...]], dict[Var, tuple[int, int]]] | None:
    """The shapes, with a variable for each named or unnamed dimension, and the input and dimension of each.

    None if a rank is not declared, or no size is symbolic.
    """
    named: dict[str, Var] = {}
    places: dict[Var, tuple[int, int]] = {}
    made: list[tuple[Dim, ...]] = []
    for i, shape in enumerate(declared):
        if shape is None or 0 in shape:
            return None
        sizes: list[Dim] = []
        for d, size in enumerate(shape):
            if isinstance(size, int):
                sizes.append(size)
                continue
            var = named.get(size) if size is not None else None
            if var is None:
                var = Var(f"n{len(places)}")
                places[var] = (i, d)
                if size is not None:
                    named[size] = var
            sizes.append(var)
        made.append(tuple(sizes))
    return (made, places) if places else None


class Guard:
    """Decides whether a graph that was imported with symbolic sizes, ``order``, is valid for given ones.

    All sizes must be positive, and the importer's assumptions must hold. ``nodes`` are the graph's;
    ``fixed``: sizes that the checks restrict to one value; ``forms``: the sizes with names of their own, or one
    value.
    ``arguments``: the sizes that the graph takes after its tensors.
    """

    def __init__(
        self,
        order: Sequence[Var],
        checks: Sequence[Check],
        nodes: Sequence[Node],
        fixed: Mapping[Var, int] | None = None,
        forms: Mapping[Var, Expr] | None = None,
    ) -> None:
        self.order = tuple(order)
        self.checks = list(checks)
        self.open = [v for v in order if v not in (fixed or {})]
        self.all = [*order, *(forms or {})]
        self.forms = {**{v: const(n, v.dtype) for v, n in (fixed or {}).items()}, **(forms or {})}
        self.arguments: tuple[int, ...] = ()
        seen: dict[Expr, Node] = {}
        for node in nodes:
            for size in node.shape:
                if isinstance(size, Expr) and static_size(size) is None:
                    seen.setdefault(size, node)
        self.nodes = list(seen.values())
        self._forms = [
            sizes_function([form], self.all[: len(order) + k]) for k, form in enumerate((forms or {}).values())
        ]
        self._sizes = sizes_function(list(seen), self.all)
        self._left = sizes_function([c.a for c in checks], self.all)
        self._right = sizes_function([c.b for c in checks], self.all)
        self._known: dict[tuple[int, ...], tuple[bool, tuple[int, ...]]] = {}

    def take(self, sizes: Sequence[Var]) -> None:
        """Set the sizes that are the graph's arguments after its tensors."""
        self.arguments = tuple(self.all.index(v) for v in sizes)

    def allows(self, sizes: tuple[int, ...]) -> bool:
        """True if the graph may run with these sizes, in order."""
        return self._look(sizes)[0]

    def values(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The graph's arguments after its tensors, as values."""
        every = self._look(sizes)[1]
        return tuple(every[k] for k in self.arguments)

    def _look(self, sizes: tuple[int, ...]) -> tuple[bool, tuple[int, ...]]:
        found = self._known.get(sizes)
        if found is None:
            if len(self._known) > 4096:
                self._known.clear()
            every = self._every(sizes)
            found = self._known[sizes] = (self._check(every), every)
        return found

    def _every(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """These sizes and the named ones. A named size is 0 if no tensor with elements has it, or if its value is not a
        number."""
        if min(sizes, default=1) < 1:
            return (0,) * len(self.all)
        every = sizes
        for form in self._forms:
            try:
                every = (*every, *form(every))
            except _NO_NUMBER:
                every = (*every, 0)
        return every

    def _check(self, every: tuple[int, ...]) -> bool:
        if min(every[: len(self.order)], default=1) < 1:
            return False
        try:
            return all(n >= 1 for n in self._sizes(every)) and all(self._met(every))
        except _NO_NUMBER:
            return False

    def _met(self, every: tuple[int, ...]) -> list[bool]:
        pairs = zip(self.checks, self._left(every), self._right(every), strict=True)
        return [a >= b if check.at_least else a == b for check, a, b in pairs]

    def broken(self, sizes: tuple[int, ...]) -> tuple[str, str]:
        """The node for which the graph is not valid with these sizes, and the violated condition."""
        every = self._every(sizes)
        if min(sizes, default=1) < 1:
            return "", "a tensor without elements"
        for n, node in zip(self._sizes(every), self.nodes, strict=True):
            if n < 1:
                return f"the {node.origin.operator} node {shown(node.origin.text)}", "its result has no elements"
        for check, met in zip(self.checks, self._met(every), strict=True):
            if not met:
                return check.node, f"it would need {check}, which these sizes do not meet"
        return "", ""
