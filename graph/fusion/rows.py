"""Reductions along rows: the reduced elements are contiguous in memory, so a kernel can load them as vectors."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from taskmap.graph.analysis.access import Accesses, size_of
from taskmap.graph.analysis.classify import definition
from taskmap.graph.analysis.inlining import is_anchor
from taskmap.graph.fusion.clusters import Rows
from taskmap.graph.nodes import Node
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim, Expr, Load, Reduce, Var
from taskmap.ir.visit import walk_exprs

# One long row, as in the sum of a whole tensor, leaves no rows to distribute among cores.
FEW_ROWS = 8
LONG_ROW = 16384


def row_reduction(node: Node, accesses: Accesses, strides: Mapping[Node, Sequence[Dim]]) -> Rows | None:
    """The rows that ``node`` reduces to one element each, or None when it is not a row reduction.

    A row reduction has one Reduce, whose axes are the last indices of a tensor in which they are contiguous.
    """
    define = definition(node)
    reduces = [e for e in walk_exprs(define.body) if isinstance(e, Reduce)]
    if len(reduces) != 1 or is_anchor(node):
        return None
    folded = [(v, n) for v, n in reduces[0].axes if static_size(n) != 1]
    wide = _wide_shape(reduces[0].body, [v for v, _ in folded])
    if not folded or wide is None or not _contiguous(node, dict(folded), accesses, strides):
        return None
    rows = Rows(size_of(node.shape), size_of([n for _, n in folded]), wide)
    if size_of(wide) != poly.multiply(rows.count, rows.length) or _too_few(rows):
        return None
    return rows


def _wide_shape(body: Expr, folded: Sequence[Var]) -> tuple[Dim, ...] | None:
    """The shape of a tensor whose last indices (sizes of 1 aside) are the reduced axes, in order."""
    for load in walk_exprs(body):
        if not isinstance(load, Load):
            continue
        indices = [i for i, n in zip(load.indices, load.buffer.shape, strict=True) if static_size(n) != 1]
        if indices[-len(folded) :] == list(folded):
            return load.buffer.shape
    return None


def _contiguous(
    node: Node, folded: Mapping[Var, Dim], accesses: Accesses, strides: Mapping[Node, Sequence[Dim]]
) -> bool:
    """True if some operand is read along the reduced axes at consecutive addresses."""
    position = accesses.position(node)
    step = position.number(list(folded), list(folded.values()))
    for access in accesses.of(node):
        if not any(_mentions(at, folded) for at in access.indices):
            continue
        position.bind(access.folded)
        rest = poly.add(position.address(access.indices, strides[access.source]), step, -1)
        if not any(_mentions(atom, folded) for monomial in rest for atom in monomial):
            return True
    return False


def _mentions(e: Expr, variables: Container[Var]) -> bool:
    return any(isinstance(v, Var) and v in variables for v in walk_exprs(e))


def _too_few(rows: Rows) -> bool:
    count, length = poly.constant_value(rows.count), poly.constant_value(rows.length)
    return count is not None and count < FEW_ROWS and (length is None or length > LONG_ROW)
