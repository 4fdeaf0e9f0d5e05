"""Products of dequantised tensors become products of their integers.

    sum (a - p)·s · (b - q)·t   ->   s·t · (sum a·b - p·(sum of column of b) - q·(sum of row of a) + k·p·q)

The sum of integers is exact, so the result is at least as accurate as a sum of floats in any order: only the scales
round. Sums of so many terms that i32 may not hold them stay products of floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from taskmap.graph.analysis.classify import definition, is_contraction
from taskmap.graph.analysis.dequantised import DequantisedValue, ExpressionReader, reads_of
from taskmap.graph.build import define, read_broadcast
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.ops.convolution import window_of
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.graph.passes.byte_products import operand_sums
from taskmap.graph.quantised.constant_parts import with_constant_parts
from taskmap.graph.quantised.convolution import PaddedWindow, convolution_product, window_sums
from taskmap.graph.quantised.products import LONGEST
from taskmap.ir.analysis.contraction import BYTES, find_contraction
from taskmap.ir.construct import cast, constant_value, index, load, product, reduce, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Load, Var
from taskmap.ir.types import f32, i32, i64
from taskmap.ir.visit import map_expr, substitute, walk_exprs


@dataclass(frozen=True, slots=True)
class IntegerSums(GraphPass):
    """Matrix products and convolutions of dequantised tensors are computed with integers."""

    name = "integer-sums"
    before = "tensors are dequantised before they are multiplied"
    after = "they are multiplied as integers, and the sums are scaled"
    why_here = "before weights are packed, which are then those of integers"

    def run(self, graph: Graph) -> Graph:
        """The same graph with such products of integers."""
        if not any(n.dtype in BYTES for n in graph.nodes()):
            return graph
        constant = set(graph.computed_once())

        def visit(now: Node, was: Node) -> Node:
            if was in constant:
                constant.add(now)
                return now
            return _visit(now, constant)

        return rewrite_known(graph, visit)


def _visit(node: Node, constant: set[Node]) -> Node:
    if not node.is_compute or node.dtype not in (f32, i32):
        return node
    if node.dtype == f32 and not is_contraction(definition(node)):
        return node
    made = _convolution(node) if "dilation" in node.attrs else _matmul(node)
    if made is None:
        return node
    constant.update(n for n in made.inputs if n.is_compute and n.inputs and constant.issuperset(n.inputs))
    return replace(with_constant_parts(made, constant), strides=node.strides, origin=node.origin)


def _matmul(node: Node) -> Node | None:
    """A sum along one axis of products of two dequantised tensors, or of two of integers that were bytes."""
    d = definition(node)
    c = find_contraction(d.axes, node.shape, d.body)
    if c is None or c.reduce is not d.body or len(c.k) != 1:
        return None
    reader, source = ExpressionReader(), dict(zip(d.inputs, node.inputs, strict=True))
    ((k, extent),) = c.k
    terms = static_size(extent)
    found = []
    for factor, other in ((c.a, c.n), (c.b, c.m)):
        one = reader.dequantised(source[factor.buffer], factor.indices) if isinstance(factor, Load) else None
        if one is None or _depends(one, {k, *(v for v, _ in other)}):
            return None
        found.append(one)
    a, b = found
    if (terms is None or terms > LONGEST) and node.dtype == f32:
        return None
    held = [reader.node_of(one.q.buffer) for one in found]
    reads = [_on_axes(one.q, axes) for one, axes in zip(found, (c.m, c.n), strict=True)]

    def element(x: Buffer, y: Buffer) -> Callable[..., ExprLike]:
        def at(*place: Expr) -> ExprLike:
            summed = Var("k")
            there = {k: summed, **dict(zip(d.axes, place, strict=True))}
            left, right = (_load_at(f, read, there) for f, read in zip((x, y), reads, strict=True))
            return reduce("sum", [(summed, extent)], cast(left, i32) * cast(right, i32))

        return at

    total = replace(define("integer_product", held, node.shape, element, i32), origin=node.origin)
    columns = operand_sums(node, c, reads[1], held[1], {v for v, _ in c.n}) if a.zero is not None else None
    rows = operand_sums(node, c, reads[0], held[0], {v for v, _ in c.m}) if b.zero is not None else None
    return _finished(node, reader, total, (a, b), (rows, columns), extent)


def _on_axes(read: Load, axes: tuple[tuple[Var, Dim], ...]) -> Load:
    """``read`` with the axes of size 1 that broadcasting has replaced by 0."""
    missing = [v for v, n in axes if static_size(n) == 1 and not any(v in walk_exprs(i) for i in read.indices)]
    where = list(read.indices)
    for d, (i, n) in enumerate(zip(read.indices, read.buffer.shape, strict=True)):
        if missing and static_size(n) == 1 and constant_value(i) == 0:
            where[d] = missing.pop(0)
    return replace(read, indices=tuple(where))


def _load_at(held: Buffer, read: Load, where: dict[Var, Expr]) -> Expr:
    """``read`` from ``held``, at indices in which variables are replaced."""
    return held[tuple(substitute(i, where) for i in read.indices)]


def _depends(one: DequantisedValue, variables: set[Var]) -> bool:
    """True if the scale or the zero point varies with one of ``variables``, or depends on the integers themselves."""
    reads = [*reads_of(one.zero), *reads_of(one.scale)]
    return any(r.buffer is one.q.buffer for r in reads) or any(
        e in variables for part in (one.zero, one.scale) if part is not None for e in walk_exprs(part)
    )


def _convolution(node: Node) -> Node | None:
    """A convolution of an image with one scale and one zero point."""
    attrs, d = node.attrs, definition(node)
    if attrs["transposed"] or attrs["groups"] != 1 or len(node.inputs) != 2 or node.dtype != f32:
        return None
    reader, (x, w) = ExpressionReader(), node.inputs
    image, weight = ([Var(f"i{n}") for n in range(len(node.shape))] for _ in range(2))
    a, b = reader.dequantised(x, image), reader.dequantised(w, weight)
    if a is None or b is None or not a.safe:
        return None
    if _depends(a, set(image)) or _depends(b, set(weight[1:])):
        return None
    held = [reader.node_of(one.q.buffer) for one in (a, b)]
    if not (_reads_whole(a.q, image) and _reads_whole(b.q, weight)):
        return None
    terms = static_size(product(w.shape[1:]))
    if terms is None or terms > LONGEST:
        return None
    b = _moved(b, {weight[0]: d.axes[1]})
    given = window_of(node)
    slide = PaddedWindow(given.stride, given.dilation, given.pairs)
    filler = None if a.zero is None else _one_byte(reader, a, held[0])
    total = replace(convolution_product(held[0], filler, held[1], slide), origin=node.origin)
    columns = None if a.zero is None else _filter_sums(held[1], len(node.shape))
    rows = None if b.zero is None else window_sums(total.inputs[0], w.shape[2:], slide, total.shape)
    return _finished(node, reader, total, (a, b), (rows, columns), terms)


def _reads_whole(read: Load, at: list[Var]) -> bool:
    """True if ``read`` is at these indices, of which it writes 0 along axes of size 1."""
    each = zip(read.indices, read.buffer.shape, at, strict=True)
    return all(i is v or (static_size(n) == 1 and constant_value(i) == 0) for i, n, v in each)


def _moved(one: DequantisedValue, where: dict[Var, Expr]) -> DequantisedValue:
    """The same value with its scale and zero point at other indices."""
    zero, scale = (None if e is None else substitute(e, where) for e in (one.zero, one.scale))
    return replace(one, zero=zero, scale=scale)


def _one_byte(reader: ExpressionReader, a: DequantisedValue, image: Node) -> Node:
    """The zero point of an image, a tensor without dimensions of the image's type."""
    reads = list(dict.fromkeys(r.buffer for r in reads_of(a.zero)))

    def element(*formals: Buffer) -> Callable[..., ExprLike]:
        assert a.zero is not None
        value = _reading(a.zero, dict(zip(reads, formals, strict=True)))
        return lambda: cast(value, image.dtype)

    return define("zero_point", [reader.node_of(r) for r in reads], (), element, image.dtype)


def _filter_sums(w: Node, rank: int) -> Node:
    """The sums of each filter's weights, i32 [1, o, 1, ...]."""
    folded = [(Var(f"r{n}"), size) for n, size in enumerate(w.shape[1:])]
    shape = (1, w.shape[0], *([1] * (rank - 2)))

    def element(f: Buffer) -> Callable[..., ExprLike]:
        return lambda *at: reduce("sum", folded, cast(load(f, (at[1], *(v for v, _ in folded))), i32))

    return define("byte_sums", [w], shape, element, i32)


def _reading(e: Expr, renamed: dict[Buffer, Buffer]) -> Expr:
    """``e`` with its loads from other buffers."""
    return map_expr(e, lambda x: renamed[x.buffer][x.indices] if isinstance(x, Load) and x.buffer in renamed else None)


def _finished(
    node: Node,
    reader: ExpressionReader,
    total: Node,
    factors: tuple[DequantisedValue, DequantisedValue],
    sums: tuple[Node | None, Node | None],
    terms: Dim,
) -> Node:
    """``total`` with corrections for zero points, scaled if ``node`` is of floats: the value of ``node``."""
    a, b = factors
    parts = [part for one in factors for part in (one.zero, one.scale)]
    reads = list(dict.fromkeys(r.buffer for part in parts for r in reads_of(part)))
    extra = [s for s in sums if s is not None]
    wide = i32 if (a.safe and b.safe) or node.dtype == i32 else i64  # integers wrap at 32 bits as they did
    axes = definition(node).axes

    def element(t: Buffer, *formals: Buffer) -> Callable[..., ExprLike]:
        given = dict(zip(extra, formals, strict=False))
        renamed = dict(zip(reads, formals[len(extra) :], strict=True))

        def at(*place: Expr) -> ExprLike:
            there = dict(zip(axes, place, strict=True))

            def value(e: Expr) -> Expr:
                return _reading(substitute(e, there), renamed)

            whole = cast(t[place], wide)
            rows, columns = (None if s is None else cast(read_broadcast(given[s], place), wide) for s in sums)
            p, q = (None if one.zero is None else cast(value(one.zero), wide) for one in factors)
            if p is not None and columns is not None:
                whole = whole - p * (columns if q is None else columns - q * cast(index(terms), wide))
            if q is not None and rows is not None:
                whole = whole - q * rows
            if node.dtype == i32:
                return whole
            scales = [value(one.scale) for one in factors if one.scale is not None]
            result = cast(whole, f32)
            return result * (scales[0] * scales[1]) if len(scales) == 2 else result * scales[0] if scales else result

        return at

    inputs = [total, *extra, *(reader.node_of(r) for r in reads)]
    return define("dequantize_sums", inputs, node.shape, element, node.dtype)
