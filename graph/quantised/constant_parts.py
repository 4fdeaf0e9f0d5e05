"""Parts of an element-wise operator that depend on constants alone become tensors, computed once.

    t - 128 · sums[o]  ->  t - part[o]              x · (0.5 · scales[o])  ->  x · part[o]

An operator that ends a product is computed for each of its elements, where a load is cheaper than what led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from taskmap.graph.analysis.classify import definition, redefined
from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.ir.construct import load, static_size
from taskmap.ir.nodes import Binary, Buffer, Expr, ExprLike, Load, Var
from taskmap.ir.task import formal
from taskmap.ir.visit import map_expr, substitute, walk_exprs


def with_constant_parts(node: Node, constant: Container[Node]) -> Node:
    """``node``, an element-wise operator, with its arithmetic on inputs that are ``constant`` in nodes of their own.
    Only parts with fewer elements than the node are taken out."""
    d = definition(node)
    source = dict(zip(d.inputs, node.inputs, strict=True))
    parts: dict[Expr, tuple[Buffer, Node]] = {}

    def taken(e: Expr) -> Expr | None:
        if not isinstance(e, Binary):
            return None
        inside = list(walk_exprs(e))
        loads = list(dict.fromkeys(x for x in inside if isinstance(x, Load)))
        used = [v for v in d.axes if v in inside]
        if not loads or any(isinstance(x, Var) and x not in used for x in inside):
            return None
        sizes = [static_size(n) for v, n in zip(d.axes, node.shape, strict=True) if v not in used]
        if any(x.buffer not in source or source[x.buffer] not in constant for x in loads) or set(sizes) <= {1}:
            return None
        if e not in parts:
            made = _part(node, e, {x.buffer: source[x.buffer] for x in loads}, used)
            parts[e] = formal(f"part{len(parts)}", made.shape, made.dtype), made
        held, made = parts[e]
        where = (0 if static_size(n) == 1 else v for v, n in zip(d.axes, made.shape, strict=True))
        return load(held, list(where))

    body = map_expr(d.body, taken)
    if not parts:
        return node
    read = {x.buffer for x in walk_exprs(body) if isinstance(x, Load)}
    held = {**source, **dict(parts.values())}
    inputs = [f for f in held if f in read]
    return redefined(node, tuple(held[f] for f in inputs), replace(d, inputs=tuple(inputs), body=body))


def _part(node: Node, e: Expr, sources: dict[Buffer, Node], used: list[Var]) -> Node:
    """The values of ``e`` along the axes that it uses; the others have size 1."""
    d = definition(node)
    shape = [n if v in used else 1 for v, n in zip(d.axes, node.shape, strict=True)]

    def element(*formals: Buffer) -> Callable[..., ExprLike]:
        renamed = dict(zip(sources, formals, strict=True))

        def read(x: Expr) -> Expr | None:
            return renamed[x.buffer][x.indices] if isinstance(x, Load) and x.buffer in renamed else None

        return lambda *place: map_expr(substitute(e, dict(zip(d.axes, place, strict=True))), read)

    return replace(define("constant_part", list(sources.values()), shape, element, e.dtype), origin=node.origin)
