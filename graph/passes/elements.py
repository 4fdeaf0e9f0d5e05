"""Elements of nodes as expressions, opened one node at a time, so that patterns can be matched on definitions.

A load refers to a node through a buffer of its own; opening it substitutes the node's definition at that position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from taskmap.graph.analysis.classify import definition, is_view
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import as_expr, constant_value, static_size
from taskmap.ir.nodes import Binary, Buffer, Cast, Dim, Expr, Load, Reduce, Var
from taskmap.ir.task import formal
from taskmap.ir.types import i64
from taskmap.ir.visit import replace_buffers, substitute, walk_exprs


@dataclass(slots=True)
class Elements:
    """Opens loads. ``simplify`` knows the extent of every variable passed to ``bind`` or introduced by a reduction."""

    simplify: Simplifier = field(default_factory=Simplifier)
    buffers: dict[Node, Buffer] = field(default_factory=dict)
    nodes: dict[Buffer, Node] = field(default_factory=dict)
    bound: set[Var] = field(default_factory=set)

    def bind(self, axes: Sequence[Var], shape: Sequence[Dim]) -> None:
        """Declares the extent of each axis; an axis of extent 1 is zero."""
        for axis, size in zip(axes, shape, strict=True):
            if axis in self.bound:
                continue
            self.bound.add(axis)
            self.simplify.bind(axis, size)
            if static_size(size) == 1:
                self.simplify.replace(axis, as_expr(0, i64))

    def buffer(self, node: Node) -> Buffer:
        """The buffer that represents ``node``."""
        if node not in self.buffers:
            made = self.buffers[node] = formal(f"x{node.id}", node.shape, node.dtype)
            self.nodes[made] = node
        return self.buffers[node]

    def body(self, node: Node) -> Expr:
        """The definition of ``node`` at its own axes, as loads from the nodes it reads."""
        define = definition(node)
        self.bind(define.axes, define.shape)
        return self._of(node, {})

    def open(self, load: Load) -> Expr:
        """The element that ``load`` reads, expressed by its node's definition."""
        node = self.nodes[load.buffer]
        return self._of(node, dict(zip(definition(node).axes, load.indices, strict=True)))

    def _of(self, node: Node, position: dict[Var, Expr]) -> Expr:
        define = definition(node)
        sources = {f: self.buffer(n) for f, n in zip(define.inputs, node.inputs, strict=True)}
        for e in walk_exprs(define.body):
            if isinstance(e, Reduce):
                self.bind(*zip(*e.axes, strict=True))
        return self.simplify(substitute(replace_buffers(define.body, sources), position))

    def behind_views(self, e: Expr) -> Load | None:
        """The load behind float conversions in ``e`` and views in the graph; None if ``e`` is not a load."""
        load = bare(e)
        while isinstance(load, Load):
            node = self.nodes[load.buffer]
            if not node.is_compute or not is_view(definition(node)):
                return load
            load = self.open(load)
        return None

    def behind_casts(self, e: Expr, passed: set[Node]) -> Load | None:
        """As ``behind_views``, but also behind float conversions that are nodes; adds all nodes passed to it."""
        load = bare(e)
        while isinstance(load, Load):
            node = self.nodes[load.buffer]
            below = bare(self.open(load)) if node.is_compute else None
            if not isinstance(below, Load):
                return load
            passed.add(node)
            load = below
        return None

    def behind_scale(self, e: Expr) -> tuple[Load, float] | None:
        """As ``behind_views``, but also behind multiplications by numbers that keep the type: (load, their product)."""
        load, scale = self.behind_views(e), 1.0
        while load is not None and self.nodes[load.buffer].is_compute:
            found = _multiplied(bare(self.open(load)))
            below = None if found is None else self.behind_views(found[0])
            if found is None or below is None or below.dtype != load.dtype:
                break
            load, scale = below, scale * found[1]
        return None if load is None else (load, scale)


def _multiplied(e: Expr) -> tuple[Expr, float] | None:
    """A product or quotient with a number, as (the other side, the factor)."""
    if not isinstance(e, Binary) or e.op not in ("mul", "div"):
        return None
    for side, number in ((e.a, constant_value(bare(e.b))), (e.b, constant_value(bare(e.a)) if e.op == "mul" else None)):
        if isinstance(number, (int, float)) and math.isfinite(number) and number != 0:
            return side, float(number) if e.op == "mul" else 1 / number
    return None


def bare(e: Expr) -> Expr:
    """``e`` without the float conversions around it."""
    while isinstance(e, Cast) and e.dtype.is_float and e.a.dtype.is_float:
        e = e.a
    return e


def depends(e: Expr, *on: Expr) -> bool:
    """True if one of the variables ``on`` occurs in ``e``."""
    return any(x in on for x in walk_exprs(e) if isinstance(x, Var))


def load_depends(load: Load, *on: Expr) -> bool:
    """True if an index of ``load`` depends on one of ``on``."""
    return any(depends(i, *on) for i in load.indices)
