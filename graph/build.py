"""Helpers that build nodes, so that defining an operator takes one short function.

Broadcasting and type promotion follow PyTorch; sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from taskmap.graph.nodes import Node, OperatorNode
from taskmap.ir.construct import reduce, static_size
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Load, Var
from taskmap.ir.task import compute, formal
from taskmap.ir.types import DType
from taskmap.ir.visit import walk_exprs


def same_dim(a: Dim, b: Dim) -> bool:
    """True if two sizes are known to be equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or (isinstance(a, Expr) and isinstance(b, Expr) and a == b)


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that ``shapes`` broadcast to. Raises GraphError when two known sizes differ and neither is 1.

    A symbolic size is assumed to equal the size it meets and not to be 1: the front end that built the graph has
    checked it.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if static_size(size) == 1 or same_dim(result[d], size):
                continue
            here, there = static_size(result[d]), static_size(size)
            if here not in (1, None) and there is not None:
                raise GraphError(f"shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast together")
            if here == 1 or there is not None:
                result[d] = size
    return tuple(result)


def read_broadcast(x: Buffer, axes: Sequence[Expr]) -> Expr:
    """The element of ``x`` that broadcasts to output position ``axes``."""
    offset = len(axes) - x.rank
    return x[tuple(0 if static_size(size) == 1 else axes[offset + d] for d, size in enumerate(x.shape))]


def define(
    op: str,
    inputs: Sequence[Node],
    shape: Sequence[Dim],
    element: Callable[..., Callable[..., ExprLike]],
    dtype: DType | None = None,
    **attrs: object,
) -> OperatorNode:
    """A node of ``shape``: ``element(*formals)`` returns the function from output indices to the element's value.

    An input that no element loads (for example in isnan of an integer) is dropped from the node's inputs.
    """
    formals = [formal(f"x{i}", n.shape, n.dtype) for i, n in enumerate(inputs)]
    definition = compute(op, formals, shape, element(*formals), dtype)
    loaded = {e.buffer for e in walk_exprs(definition.body) if isinstance(e, Load)}
    read = [i for i, x in enumerate(formals) if x in loaded]
    if len(read) < len(formals):
        definition = replace(definition, inputs=tuple(formals[i] for i in read))
    sources, held = tuple(inputs[i] for i in read), MappingProxyType(attrs)
    return OperatorNode(sources, definition.shape, definition.dtype, op, definition, held)


def elementwise(op: str, inputs: Sequence[Node], function: Callable[..., ExprLike], dtype: DType | None = None) -> Node:
    """A node whose element is ``function`` of the broadcast elements of ``inputs``."""
    shape = broadcast_shapes(*(n.shape for n in inputs))

    def element(*formals: Buffer) -> Callable[..., ExprLike]:
        return lambda *axes: function(*(read_broadcast(x, axes) for x in formals))

    return define(op, inputs, shape, element, dtype)


def reduction(
    op: str,
    x: Node,
    dims: Sequence[int],
    keepdim: bool,
    kind: str,
    prepare: Callable[[Expr], ExprLike] = lambda e: e,
    finish: Callable[[Expr], ExprLike] = lambda e: e,
    dtype: DType | None = None,
) -> Node:
    """A node that reduces ``prepare(x)`` over ``dims`` by ``kind`` (see Reduce) and then applies ``finish``."""
    reduced = sorted(d % len(x.shape) for d in dims) if x.shape else []
    shape = [1 if d in reduced else s for d, s in enumerate(x.shape) if keepdim or d not in reduced]

    def element(formal_x: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> ExprLike:
            folded = [(Var(f"r{d}"), x.shape[d]) for d in reduced]
            inner = dict(zip(reduced, (v for v, _ in folded), strict=True))
            outer = iter(a for d, a in enumerate(axes) if d not in reduced) if keepdim else iter(axes)
            position: tuple[Expr, ...] = tuple(inner[d] if d in inner else next(outer) for d in range(len(x.shape)))
            return finish(reduce(kind, folded, prepare(formal_x[position])))

        return at

    return define(op, [x], shape, element, dtype)


def reindex(op: str, x: Node, shape: Sequence[Dim], source: Callable[..., Sequence[ExprLike]], **attrs: object) -> Node:
    """A node that only moves elements: out[axes] = x[source(*axes)]."""
    return define(op, [x], shape, lambda f: lambda *axes: f[tuple(source(*axes))], None, **attrs)
