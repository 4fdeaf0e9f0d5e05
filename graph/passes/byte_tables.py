"""Functions of one byte whose results are bytes become tables of 256 bytes.

    q = quantize(sigmoid(dequantize(p)))     ->     q[i] = table[p[i]],  table[b] = quantize(sigmoid(dequantize(b)))

The table is computed once, by the same operations, so the results are the same bits. Chains of several operators of a
quantised model end in one table, as long as all of them read a single tensor of bytes, at their own position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from taskmap.graph.analysis.classify import definition, is_injective
from taskmap.graph.build import define
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.ir.analysis.contraction import BYTES
from taskmap.ir.construct import cast, const, load, product, static_size
from taskmap.ir.nodes import Binary, Buffer, Call, Cast, Compare, Expr, ExprLike, Load, Select, Unary, Var
from taskmap.ir.task import formal
from taskmap.ir.types import i64, u8
from taskmap.ir.visit import children, map_expr, substitute, walk_exprs

_DEEPEST = 32
_LARGEST = 1000
"""Operations of a function, each counted as often as it is read, at most."""
_FEWEST = 8
"""Operations that take longer than a look-up."""
VALUES = 256
"""Values of a byte."""


@dataclass(frozen=True, slots=True)
class TabulateBytes(GraphPass):
    """Element-wise functions from bytes to bytes are looked up in tables."""

    name = "tabulate-bytes"
    before = "each byte of a quantised tensor is computed from another through floats"
    after = "where it depends on one byte alone, it is looked up"
    why_here = "before sums of dequantised tensors become sums of integers, which looks through the operators left"

    def run(self, graph: Graph) -> Graph:
        """The same graph with such tables."""
        reader = _Reader(graph.computed_once())
        made: dict[Node, Node] = {}

        def visit(now: Node, was: Node) -> Node:
            found = reader.function(was)
            made[was] = now if found is None else _looked_up(was, found, made)
            return made[was]

        return rewrite_known(graph, visit)


@dataclass(frozen=True, slots=True)
class ByteFunction:
    """A value as a function of the element of ``source``, a tensor of bytes, at its own position: ``body`` loads
    ``held`` there, and single elements of ``constants``."""

    source: Node
    held: Buffer
    axes: tuple[Var, ...]
    body: Expr
    constants: tuple[tuple[Buffer, Node], ...]


@dataclass(slots=True)
class _Reader:
    constant: frozenset[Node]
    found: dict[Node, ByteFunction] = field(default_factory=dict)

    def function(self, node: Node) -> ByteFunction | None:
        """The function of one byte that a node of bytes computes; None if it computes anything else."""
        if node.dtype not in BYTES or node in self.constant or not _is_elementwise(node):
            return None
        formals: dict[Node, Buffer] = {}
        axes = definition(node).axes
        try:
            body = self.expand(node, axes, formals, 0)
        except _TooLargeError:
            return None
        sources = [n for n in formals if n not in self.constant]
        if len(sources) != 1 or sources[0].dtype not in BYTES:
            return None
        (source,) = sources
        held = formals[source]
        loads = [e for e in walk_exprs(body) if isinstance(e, Load)]
        if any(e.buffer is held and e.indices != axes for e in loads) or _operations(body) < _FEWEST:
            return None
        constants = tuple((f, n) for n, f in formals.items() if n is not source)
        self.found[node] = ByteFunction(source, held, axes, body, constants)
        return self.found[node]

    def expand(self, node: Node, where: Sequence[Expr], formals: dict[Node, Buffer], depth: int) -> Expr:
        """The element of ``node`` at ``where`` as an expression of tensors of bytes and of constants."""
        is_leaf = depth and node.dtype in BYTES and node not in self.found
        if is_leaf or node in self.constant or not _is_elementwise(node):
            if node not in self.constant and node.dtype not in BYTES:
                raise _TooLargeError
            if node in self.constant and static_size(product(node.shape)) != 1:
                raise _TooLargeError
            held = formals.setdefault(node, formal(f"x{len(formals)}", node.shape, node.dtype))
            return load(held, where)
        if depth > _DEEPEST:
            raise _TooLargeError
        d = definition(node)
        source = dict(zip(d.inputs, node.inputs, strict=True))
        body = substitute(d.body, dict(zip(d.axes, where, strict=True)))

        def one(e: Expr) -> Expr | None:
            # A load that is not of this definition has replaced one: select(c, x, x) is x.
            if not isinstance(e, Load) or e.buffer not in source:
                return None
            return self.expand(source[e.buffer], e.indices, formals, depth + 1)

        expanded = map_expr(body, one)
        if _operations(expanded) > _LARGEST:
            raise _TooLargeError
        return expanded


class _TooLargeError(Exception):
    """The value does not depend on one byte alone, or its computation is long."""


def _is_elementwise(node: Node) -> bool:
    """True if an element is computed from elements of the inputs alone, and not from its position."""
    if not node.is_compute or not is_injective(definition(node)):
        return False
    d = definition(node)
    computed = map_expr(d.body, lambda e: const(0, e.dtype) if isinstance(e, Load) else None)
    return not any(e in d.axes for e in walk_exprs(computed))


def _operations(e: Expr) -> int:
    """The operations of an expression without its indices, each counted as often as it is read."""
    counts: dict[int, int] = {}

    def count(x: Expr) -> int:
        if id(x) not in counts:
            inside = 0 if isinstance(x, Load) else sum(map(count, children(x)))
            counts[id(x)] = inside + isinstance(x, (Binary, Call, Cast, Compare, Select, Unary))
        return counts[id(x)]

    return count(e)


def _looked_up(node: Node, f: ByteFunction, made: dict[Node, Node]) -> Node:
    def entry(*held: Buffer) -> Callable[..., ExprLike]:
        renamed = dict(zip((b for b, _ in f.constants), held, strict=True))

        def at(byte: Expr) -> ExprLike:
            def one(e: Expr) -> Expr | None:
                if not isinstance(e, Load):
                    return None
                if e.buffer is f.held:
                    return cast(cast(byte, u8), f.held.dtype)
                return load(renamed[e.buffer], [0] * len(e.indices))

            return map_expr(f.body, one)

        return at

    table = replace(
        define("byte_table", [made[n] for _, n in f.constants], (VALUES,), entry, node.dtype), origin=node.origin
    )

    def element(x: Buffer, entries: Buffer) -> Callable[..., ExprLike]:
        return lambda *at: entries[(cast(cast(x[at], u8), i64),)]

    found = define("look_up", [made[f.source], table], node.shape, element, node.dtype)
    return replace(found, strides=node.strides, origin=node.origin)
