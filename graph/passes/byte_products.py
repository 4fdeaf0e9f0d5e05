"""Products of bytes with the signs that the dot products of CPUs take: unsigned by signed, u8 × i8 -> i32.

    a signed:     sum a·b = sum (a + 128)·b - 128·(sum of column j of b)
    b unsigned:   sum a·b = sum a·(b - 128) + 128·(sum of row i of a)

Both shifts flip the highest bit: that of ``a`` as the product reads it, unless its sums are needed, too. Sums wrap at
32 bits, so the results equal those of the product as it was for any values. The sums of the columns of a constant are
computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskmap.graph.analysis.classify import redefined
from taskmap.graph.build import define, elementwise
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.contraction import Contraction, byte_factor, find_contraction
from taskmap.ir.construct import binary, cast, const, load, reduce
from taskmap.ir.nodes import Buffer, Cast, Dim, Expr, ExprLike, Load, Var
from taskmap.ir.task import formal
from taskmap.ir.types import DType, i8, i32, u8
from taskmap.ir.visit import map_expr, substitute

_SHIFT = 128


def multiply_unsigned_by_signed(node: Node) -> tuple[Node, tuple[Node, ...]] | None:
    """The product ``node`` with a first factor of u8 and a second of i8, and the terms to add to it, whose axes of size
    1 broadcast. None if it is not a product of two tensors of bytes in memory, summed along one axis."""
    definition = node.define
    c = None if definition is None else find_contraction(definition.axes, node.shape, definition.body)
    if definition is None or c is None or definition.body is not c.reduce or len(c.k) != 1:
        return None
    a, b = _byte_load(c.a), _byte_load(c.b)
    if a is None or b is None or a.buffer is b.buffer:
        return None
    changed: dict[Buffer, tuple[Buffer, Node]] = {}
    source = dict(zip(definition.inputs, node.inputs, strict=True))
    terms: list[Node] = []
    read_flipped = a.buffer if a.dtype == b.dtype == i8 else None
    if a.dtype == i8:
        if read_flipped is None:
            changed[a.buffer] = _flipped(a.buffer, source[a.buffer], u8)
        terms.append(operand_sums(node, c, b, source[b.buffer], {v for v, _ in c.n}, -_SHIFT))
    if b.dtype == u8:
        changed[b.buffer] = _flipped(b.buffer, source[b.buffer], i8)
        unsigned = changed[a.buffer][1] if a.buffer in changed else source[a.buffer]
        terms.append(operand_sums(node, c, a, unsigned, {v for v, _ in c.m}, _SHIFT))
    if not terms:
        return node, ()
    inputs = tuple(changed[f][0] if f in changed else f for f in definition.inputs)
    sources = tuple(changed[f][1] if f in changed else source[f] for f in definition.inputs)
    body = map_expr(definition.body, lambda e: _reading(e, changed, read_flipped))
    return redefined(node, sources, replace(definition, inputs=inputs, body=body)), tuple(terms)


def with_terms(node: Node, product: Node, terms: tuple[Node, ...]) -> Node:
    """``product`` plus ``terms``, in the place of ``node``."""
    if not terms:
        return product
    total = elementwise("correct", [replace(product, strides=None), *terms], _total, i32)
    return replace(total, strides=node.strides, origin=node.origin)


def _total(first: Expr, *rest: Expr) -> Expr:
    for e in rest:
        first = first + e
    return first


def _byte_load(factor: Expr) -> Load | None:
    if byte_factor(factor) is None or not isinstance(factor, Cast) or not isinstance(factor.a, Load):
        return None
    return factor.a


def _flipped(held: Buffer, x: Node, dtype: DType) -> tuple[Buffer, Node]:
    """``x`` plus or minus 128 as ``dtype``, with the formal operand that replaces ``held``."""
    node = elementwise("flip", [x], lambda e: _flip(e, dtype), dtype)
    return formal(held.name, held.shape, dtype), replace(node, origin=x.origin)


def _flip(e: Expr, dtype: DType) -> Expr:
    return cast(binary("xor", e, const(_SHIFT, e.dtype)), dtype)


def _reading(e: Expr, changed: dict[Buffer, tuple[Buffer, Node]], read_flipped: Buffer | None) -> Expr | None:
    """A widened load of an operand that was flipped, or is flipped here."""
    if not isinstance(e, Cast) or not isinstance(e.a, Load):
        return None
    if e.a.buffer is read_flipped:
        return cast(_flip(e.a, u8), e.dtype)
    if e.a.buffer not in changed:
        return None
    return cast(load(changed[e.a.buffer][0], e.a.indices), e.dtype)


def operand_sums(node: Node, c: Contraction, read: Load, x: Node, kept: set[Var], factor: int = 1) -> Node:
    """``factor`` times the sums of ``read``, a byte of ``x``, along the one summed axis of ``node``, the contraction c:
    i32, with the axes of ``node``, of size 1 unless ``kept`` or batch axes."""
    assert node.define is not None
    ((k, extent),) = c.k
    kept = kept | {v for v, _ in c.batch}
    axes = node.define.axes
    shape: list[Dim] = [d if v in kept else 1 for v, d in zip(axes, node.shape, strict=True)]

    def element(held: Buffer) -> Callable[..., ExprLike]:
        def at(*place: Expr) -> ExprLike:
            summed = Var("k")
            where = {k: summed, **{v: p for v, p in zip(axes, place, strict=True) if v in kept}}
            value = load(held, [substitute(i, where) for i in read.indices])
            total = reduce("sum", [(summed, extent)], cast(value, i32))
            return total if factor == 1 else total * const(factor, i32)

        return at

    return replace(define("byte_sums", [x], shape, element, i32), origin=node.origin)
