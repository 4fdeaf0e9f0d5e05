"""The elements a node reads: the accesses of its definition, seen through the nodes inlined into it.

Two accesses are compared by the row-major number of the element they touch, as a polynomial in the reader's axes. It
therefore makes no difference whether a value is reached directly or through reshapes that keep the order of its
elements.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from taskmap.graph.analysis.classify import definition, same_position
from taskmap.graph.nodes import Node
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import as_expr, index, product, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, Load, Reduce, Scatter, Var
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.types import i64
from taskmap.ir.visit import children, substitute


@dataclass(frozen=True, slots=True, eq=False)
class GraphRead:
    """One read: element ``indices`` of ``source``, inside a reduction over ``folded`` (empty outside of reductions)."""

    source: Node
    indices: tuple[Expr, ...]
    folded: tuple[tuple[Var, Dim], ...]
    aligned: bool = False  # known, without a look at the indices, to read the reader's own position


def size_of(shape: Sequence[Dim]) -> Poly:
    """The number of elements of a tensor, in a form in which equal counts compare equal."""
    known = product(shape)
    return poly.constant(known) if isinstance(known, int) else poly.to_poly(known)


@dataclass(slots=True)
class Accesses:
    """The reads of every node, with the nodes in ``inlined`` recomputed at each read."""

    inlined: Container[Node]
    _reads: dict[Node, list[GraphRead]] = field(default_factory=dict)
    _positions: dict[Node, Position] = field(default_factory=dict)

    def of(self, node: Node) -> list[GraphRead]:
        """The reads of ``node``; no source is an inlined node."""
        if node not in self._reads:
            self._reads[node] = self._collect(node)
        return self._reads[node]

    def sources(self, node: Node) -> list[Node]:
        """The distinct nodes that ``node`` reads, in order."""
        return list(dict.fromkeys(a.source for a in self.of(node)))

    def position(self, node: Node) -> Position:
        """The axes of ``node``, against which its reads are compared."""
        if node not in self._positions:
            self._positions[node] = Position(node)
        return self._positions[node]

    def _collect(self, node: Node) -> list[GraphRead]:
        define = definition(node)
        inputs = dict(zip(define.inputs, node.inputs, strict=True))
        found: list[GraphRead] = []
        for load, folded in _loads(define.body):
            source = inputs[load.buffer]
            if source in self.inlined:
                found += self._through(source, load.indices, folded)
            else:
                aligned = not folded and source.shape == define.shape and same_position(define, load)
                found.append(GraphRead(source, load.indices, folded, aligned))
        return found

    def _through(self, node: Node, at: Sequence[Expr], folded: tuple[tuple[Var, Dim], ...]) -> list[GraphRead]:
        """The reads behind element ``at`` of an inlined node."""
        here = dict(zip(definition(node).axes, at, strict=True))
        return [
            GraphRead(a.source, tuple(substitute(i, here) for i in a.indices), folded or a.folded)
            for a in self.of(node)
        ]


def _loads(body: Expr) -> list[tuple[Load, tuple[tuple[Var, Dim], ...]]]:
    """Every load of a body, with the axes of the innermost reduction around it."""
    found: dict[tuple[int, int], tuple[Load, tuple[tuple[Var, Dim], ...]]] = {}
    stack: list[tuple[Expr, tuple[tuple[Var, Dim], ...]]] = [(body, ())]
    seen: set[tuple[int, int]] = set()
    own: set[Buffer] = set()
    while stack:
        e, folded = stack.pop()
        key = (id(e), id(folded))
        if key in seen:
            continue
        seen.add(key)
        if isinstance(e, Load):
            found[key] = (e, folded)
        if isinstance(e, Recurrence):
            own.update(e.own)
            folded = e.bound
        inner = e.axes if isinstance(e, (Reduce, Scatter)) else folded
        outer = (e.initial, *e.here) if isinstance(e, Scatter) else ()
        stack.extend((k, folded if k in outer else inner) for k in reversed(children(e)))
    return [(load, folded) for load, folded in found.values() if load.buffer not in own]


@dataclass(slots=True)
class Position:
    """The position of a node's output element: its axes, and index arithmetic that knows their ranges."""

    node: Node
    simplify: Simplifier = field(default_factory=Simplifier)

    def __post_init__(self) -> None:
        self.bind(list(zip(definition(self.node).axes, self.node.shape, strict=True)))

    def bind(self, axes: Sequence[tuple[Var, Dim]]) -> None:
        """Declares the ranges of further variables, those of a reduction."""
        for axis, size in axes:
            self.simplify.bind(axis, size)
            if static_size(size) == 1:
                self.simplify.replace(axis, as_expr(0, i64))

    def number(self, indices: Sequence[Expr], shape: Sequence[Dim]) -> Poly:
        """The row-major number of element ``indices`` of a tensor of ``shape``."""
        flat: Expr = index(0)
        for at, size in zip(indices, shape, strict=True):
            flat = flat * index(size) + at
        return self.simplify.poly(flat)

    def address(self, indices: Sequence[Expr], strides: Sequence[Dim]) -> Poly:
        """The address of element ``indices`` of a tensor with ``strides``."""
        total: Expr = index(0)
        for at, stride in zip(indices, strides, strict=True):
            total = total + at * index(stride)
        return self.simplify.poly(total)

    def touched(self, access: GraphRead) -> Poly:
        """The row-major number of the element that ``access`` reads."""
        self.bind(access.folded)
        return self.number(access.indices, access.source.shape)

    def own(self) -> Poly:
        """The row-major number of the element being computed."""
        return self.number(definition(self.node).axes, self.node.shape)

    def aligned(self, access: GraphRead) -> bool:
        """True if ``access`` reads the element with the same number as the one being computed."""
        if access.aligned:
            return True
        return not access.folded and self.touched(access) == self.own()

    def split(self, rows: Poly) -> int | None:
        """The number of leading axes whose sizes multiply to ``rows``, so that they number the rows, or None."""
        shape = self.node.shape
        return next((d for d in reversed(range(len(shape) + 1)) if size_of(shape[:d]) == rows), None)

    def row_number(self, split: int) -> Poly:
        """The number of the row being computed."""
        return self.number(definition(self.node).axes[:split], self.node.shape[:split])

    def column_number(self, split: int, access: GraphRead) -> Poly:
        """The number, within its row, of the element that a read at the reader's own position touches."""
        if access.folded:
            return self.number([v for v, _ in access.folded], [n for _, n in access.folded])
        return self.number(definition(self.node).axes[split:], self.node.shape[split:])
