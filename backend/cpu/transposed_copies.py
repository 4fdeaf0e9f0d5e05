"""Copies that exchange the rows and columns of a square of words of 32 bits, written as sixteen strided vectors.

    for j in 16:   to[j · step .. + 16] = from[ramp(j, rows, 16)]       words of one f32, two bf16, or four bytes

Each of these vectors is collected word by word from sixteen places. Rows that are loaded whole, and exchanged among
registers, take a third of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast as typed

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value
from taskmap.ir.visit import walk_exprs, walk_stmts

SIDE = 16
"""Words along each side of a square."""


@dataclass(frozen=True, slots=True)
class TransposedMatrix:
    """A square of words: row i begins ``rows`` · i elements behind element ``source`` of ``read``; its word j becomes
    word i behind element ``first + step · j`` of ``written``. end: the number of the statement after it."""

    written: ir.Buffer
    first: ir.Expr
    step: int
    read: ir.Buffer
    source: ir.Expr
    rows: ir.Expr
    end: int


def transposed_copy(body: ir.Body, number: int, vector_bytes: int) -> TransposedMatrix | None:
    """The square that the statements of ``body`` from ``number`` on copy: each names a vector, or stores the one just
    named. None if they do something else, or a name is used again."""
    first = _pair(body, number)
    if first is None or vector_bytes != 4 * SIDE:
        return None
    load, store = first
    size = 32 // store.buffer.dtype.bits
    end = number + 2 * SIDE * size
    pairs = [_pair(body, at) for at in range(number, end, 2)]
    if any(p is None for p in pairs) or load.buffer is store.buffer or load.dtype != store.buffer.dtype:
        return None
    moved = [_distances(first, p) for p in pairs if p is not None]
    next_column = moved[size]
    if next_column is None or next_column[1] % size:
        return None
    step = next_column[1]
    wanted = [(i, i // size * step + i % size) for i in range(len(pairs))]
    if moved != wanted or _used(body, end, {typed(ir.Let, body[at]).var for at in range(number, end, 2)}):
        return None
    source, target = typed(ir.Ramp, load.indices[0]), typed(ir.Ramp, store.indices[0])
    if constant_value(target.stride) != size:
        return None
    return TransposedMatrix(store.buffer, target.base, step, load.buffer, source.base, source.stride, end)


_Pair = tuple[ir.Load, ir.Store]


def _pair(body: ir.Body, at: int) -> _Pair | None:
    """A vector loaded with a stride, and the store of it."""
    let, store = (body[i] if i < len(body) else None for i in (at, at + 1))
    if not isinstance(let, ir.Let) or not isinstance(store, ir.Store) or store.value is not let.var:
        return None
    load = let.value
    if not isinstance(load, ir.Load) or store.buffer.scope is ir.Scope.REGISTER or store.buffer.dtype.is_bool:
        return None
    if load.buffer.scope is ir.Scope.REGISTER or store.buffer.dtype.bits not in (8, 16, 32):
        return None
    places = (*load.indices, *store.indices)
    if len(places) != 2 or not all(isinstance(i, ir.Ramp) and i.lanes == SIDE for i in places):
        return None
    return load, store


def _distances(first: _Pair, later: _Pair) -> tuple[int, int] | None:
    """The distances of the places that two pairs read and write; None if they are of other buffers or strides, or the
    distances are not known."""
    found = []
    for a, b in ((first[0], later[0]), (first[1], later[1])):
        x, y = typed(ir.Ramp, a.indices[0]), typed(ir.Ramp, b.indices[0])
        apart = poly.add(poly.to_poly(y.base), poly.to_poly(x.base), -1)
        if a.buffer is not b.buffer or x.stride != y.stride or not set(apart) <= {()}:
            return None
        found.append(int(apart.get((), 0)))
    return found[0], found[1]


def _used(body: ir.Body, start: int, names: set[ir.Var]) -> bool:
    return any(e in names for s in walk_stmts(body[start:]) for e in walk_exprs(s))
