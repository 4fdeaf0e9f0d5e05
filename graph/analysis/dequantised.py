"""Recognising a dequantised tensor from its expression: (q - zero) · scale, with q an integer of eight bits.

The expression is traced through element-wise nodes and views, so any way to write it is found: with or without a zero
point, with the difference taken of integers or of floats, scaled per tensor, per channel or per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from taskmap.graph.analysis.classify import definition, is_injective
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.contraction import BYTES
from taskmap.ir.construct import cast, const, constant_value, load
from taskmap.ir.nodes import Binary, Buffer, Cast, Const, Expr, Load
from taskmap.ir.task import formal
from taskmap.ir.types import f32, i32, i64
from taskmap.ir.visit import map_expr, substitute, walk_exprs

_DEEPEST = 8
_LEAST, _MOST = -128, 255
"""The range of bytes of either sign."""


@dataclass(frozen=True, slots=True)
class DequantisedValue:
    """(q - zero) · scale. zero: an integer of i64, None for 0. safe: the zero point is certainly a byte."""

    q: Load
    zero: Expr | None
    scale: Expr | None
    safe: bool = True


@dataclass(slots=True)
class ExpressionReader:
    """Expands values into expressions of the tensors behind them; ``formals`` are these tensors' formal operands."""

    formals: dict[Node, Buffer] = field(default_factory=dict)

    def operand(self, node: Node) -> Buffer:
        """The formal operand for a tensor."""
        if node not in self.formals:
            self.formals[node] = formal(f"x{len(self.formals)}", node.shape, node.dtype)
        return self.formals[node]

    def node_of(self, held: Buffer) -> Node:
        """The tensor behind a formal operand."""
        return next(node for node, f in self.formals.items() if f is held)

    def expand(self, node: Node, where: Sequence[Expr], depth: int = 0) -> Expr:
        """The element of ``node`` at ``where``, as an expression of tensors of bytes and of tensors without them."""
        if not _has_bytes_behind(node, depth):
            return load(self.operand(node), where)
        define = definition(node)
        source = dict(zip(define.inputs, node.inputs, strict=True))
        body = substitute(define.body, dict(zip(define.axes, where, strict=True)))

        def one(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.buffer not in source:  # an index of a gather is expanded already
                return None
            return self.expand(source[e.buffer], e.indices, depth + 1)

        return map_expr(body, one)

    def dequantised(self, node: Node, where: Sequence[Expr]) -> DequantisedValue | None:
        """The element of ``node`` at ``where`` as a dequantised byte, or as one less its zero point if ``node`` is of
        i32; None if it is neither."""
        if node.dtype not in (f32, i32):
            return None
        element = self.expand(node, where)
        return _scaled(element) if node.dtype == f32 else _shifted(element)


def _has_bytes_behind(node: Node, depth: int) -> bool:
    """True if ``node`` is computed element by element from a tensor of bytes."""
    if node.dtype in BYTES or not node.is_compute or depth > _DEEPEST or not is_injective(definition(node)):
        return False
    return any(n.dtype in BYTES or _has_bytes_behind(n, depth + 1) for n in node.inputs)


def _scaled(e: Expr) -> DequantisedValue | None:
    if isinstance(e, Binary) and e.op == "mul" and e.dtype == f32:
        for value, factor in ((e.a, e.b), (e.b, e.a)):
            found = _scaled(value)
            if found is not None:
                return replace(found, scale=factor if found.scale is None else found.scale * factor)
        return None
    if isinstance(e, Binary) and e.op in ("sub", "add") and e.dtype == f32:
        found, zero = _scaled(e.a), constant_value(e.b)
        if found is None or found.zero is not None or found.scale is not None:
            return None
        if isinstance(e.b, Cast) and e.b.a.dtype.is_int and e.op == "sub":
            return replace(found, zero=cast(e.b.a, i64), safe=_comes_from_byte(e.b.a))
        if not _is_byte(zero):
            return None
        return replace(found, zero=const(int(zero or 0) * (1 if e.op == "sub" else -1), i64)) if zero else found
    if isinstance(e, Cast) and e.dtype == f32 and e.a.dtype.is_int:
        return _shifted(e.a)
    return None


def _shifted(e: Expr) -> DequantisedValue | None:
    """q - zero, an integer."""
    if isinstance(e, Load):
        return DequantisedValue(e, None, None) if e.dtype in BYTES else None
    if isinstance(e, Cast) and e.a.dtype.is_int and e.dtype.bits > 8:
        return _shifted(e.a)
    if not isinstance(e, Binary) or e.op not in ("sub", "add") or e.dtype.bits < 16:
        return None
    found, value = _shifted(e.a), constant_value(e.b)
    if found is None or found.zero is not None or (e.op == "add" and value is None):
        return None
    if value is not None:
        zero = int(value) * (1 if e.op == "sub" else -1)
        return replace(found, zero=const(zero, i64) if zero else None, safe=_LEAST <= zero <= _MOST)
    return replace(found, zero=cast(e.b, i64), safe=_comes_from_byte(e.b))


def _is_byte(value: object) -> bool:
    return isinstance(value, (int, float)) and value == int(value) and -_MOST <= value <= _MOST


def _comes_from_byte(e: Expr) -> bool:
    while isinstance(e, Cast) and e.a.dtype.is_int and e.dtype.bits > e.a.dtype.bits:
        e = e.a
    return isinstance(e, Load) and e.dtype in BYTES


def reads_of(e: Expr | None) -> list[Load]:
    """The loads of an expression."""
    return [] if e is None or isinstance(e, Const) else [x for x in walk_exprs(e) if isinstance(x, Load)]
