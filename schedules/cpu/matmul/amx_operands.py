"""The operands of a product of tiles: their types, sizes, and where tiles of them lie in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.analysis.contraction import Contraction, unconverted
from taskmap.ir.analysis.positions import flatten
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import index, product, static_size
from taskmap.ir.nodes import Binary, Buffer, Const, Dim, Expr, Load, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.cpu.matmul.amx_tile import TileUnit, tile_unit

_INTEGER_OPS: Mapping[str, Callable[..., object]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}
_SIZE = 1009
"""A symbolic size as part of an address: runs of terms are not joined by one of that size."""
FEWEST_ROWS = 32
"""Rows for which copying b into panels on every call pays."""
_LONGEST_LINE = 1.35
"""A line of positions with its gap, as a multiple of a line without, at most."""


@dataclass(frozen=True, slots=True)
class StridedRows:
    """An operand whose rows lie ``stride`` elements apart in memory, each contiguous."""

    load: Load
    stride: int


@dataclass(frozen=True, slots=True)
class TileOperands:
    """A contraction on tiles: its factors have the operands' own types; m, n and k are its extents. rows: of a, if
    tiles can be loaded from memory. packed: b in memory, if it is stored as tiles. by_terms: neighbours
    of b along the sum are adjacent in memory. run: terms of a, from any multiple of their number on, that are equally
    far apart in memory. present: the rows of each line of a's last axis that exist, if there are gaps between lines:
    the sums of a gap are computed with the others, and not stored."""

    contraction: Contraction
    unit: TileUnit
    m: Dim
    n: Dim
    k: int
    rows: StridedRows | None
    packed: Buffer | None
    by_terms: bool = False
    run: int = 1
    present: int | None = None

    @property
    def steps(self) -> int:
        """Steps of the sum, the last one filled with zeros."""
        return -(-self.k // self.unit.depth)

    @property
    def is_stored(self) -> bool:
        """True if a is read from memory as it is."""
        return isinstance(self.contraction.a, Load)


def find_operands(task: Task, c: Contraction, target: CpuTarget) -> TileOperands | None:
    """The operands of a contraction that ``target`` multiplies by tiles; None if it does not, if the sum has a
    symbolic length, or if b would have to be copied for a few rows only."""
    a, b = unconverted(c.a), unconverted(c.b)
    unit = tile_unit(a.dtype, b.dtype, target)
    m, n, k = (product([d for _, d in axes]) for axes in (c.m, c.n, c.k))
    depth, rows = static_size(k), static_size(m)
    if unit is None or not depth or c.reduce.dtype != unit.tiles.spec.c:
        return None
    c = replace(c, a=a, b=b, k=(*c.k[1:], c.k[0]))  # as packed: the channels of a convolution innermost
    stored = _packed(task, c, unit)
    one_sum = sum(static_size(d) != 1 for _, d in c.k) == 1
    if stored is None and (rows is None or rows < FEWEST_ROWS or not one_sum):
        return None
    if rows is not None and rows <= unit.rows:
        unit = replace(unit, high=1)
    run = _run(task, c, unit.depth)
    return TileOperands(c, unit, m, n, depth, _strided_rows(task, c), stored, _is_contiguous_along_sum(task, c), run)


def through_gaps(task: Task, operands: TileOperands) -> TileOperands | None:
    """The same product with the rows of all lines numbered through, gaps included, so that tiles of a are loaded from
    memory: lines of a padded image are longer than those of the result, and their rows are equally far apart.

    Further axes of rows become axes of the batch. None if rows are loaded anyway, if a step of the sum is not
    contiguous, or if too much would be computed for gaps.
    """
    c, depth = operands.contraction, operands.unit.depth
    lines = [(v, static_size(d)) for v, d in c.m if static_size(d) != 1][-2:]
    terms = _address(task, c, c.a)
    if operands.rows is not None or operands.run != depth or operands.k % depth or static_size(operands.n) is None:
        return None
    if len(lines) != 2 or terms is None or not isinstance(c.a, Load) or not _is_linear(terms, {v for v, _ in c.m}):
        return None
    (y, high), (x, wide) = lines
    line, step, places = terms.get((y,), 0), terms.get((x,), 0), _places(task, c)
    if high is None or wide is None or places is None or places[1] - places[0] != 1 or step <= 0 or line % step:
        return None
    pitch = int(line // step)
    if not wide <= pitch <= _LONGEST_LINE * wide:
        return None
    outer = tuple((v, d) for v, d in c.m if v not in (x, y))
    numbered = replace(c, batch=(*c.batch, *outer), m=((y, high), (x, pitch)))
    rows = StridedRows(c.a, int(step))
    return replace(operands, contraction=numbered, m=(high - 1) * pitch + wide, rows=rows, present=wide)


def _packed(task: Task, c: Contraction, unit: TileUnit) -> Buffer | None:
    """The buffer of a b that is stored in panels of the unit's width, in whole tiles."""
    if not isinstance(c.b, Load) or len(c.n) != 1 or len(c.b.indices) != 4 or c.b.buffer in task.producers:
        return None
    buffer, simplifier = c.b.buffer, Simplifier()
    for v, extent in (*c.n, *c.k):
        simplifier.bind(v, extent)
    *_, width, group = (static_size(d) for d in buffer.shape)
    depth = static_size(buffer.shape[1])
    if (width, group) != (unit.width, unit.tiles.group) or depth is None or not is_row_major(buffer):
        return None
    if depth * unit.tiles.group % unit.depth:
        return None
    column, term = c.n[0][0], flatten(c.k)
    at = (column // unit.width, term // unit.tiles.group, column % unit.width, term % unit.tiles.group)
    same = all(simplifier(i) == simplifier(j) for i, j in zip(c.b.indices, at, strict=True))
    return buffer if same else None


def is_row_major(buffer: Buffer) -> bool:
    """True if the elements of a buffer lie densely in memory, in the order of its indices."""
    if buffer.layout is not None or static_size(buffer.offset) != 0:
        return False
    dense = [product(buffer.shape[d + 1 :]) for d in range(buffer.rank)]
    return buffer.strides is None or [static_size(d) for d in buffer.strides] == [static_size(d) for d in dense]


def _strided_rows(task: Task, c: Contraction) -> StridedRows | None:
    """The rows of a in memory, if they have a constant stride, and neighbours along the sum are adjacent."""
    terms = _address(task, c, c.a)
    summed = [v for v, d in c.k if static_size(d) != 1]
    if terms is None or len(summed) != 1:
        return None
    if not _is_linear(terms, {v for v, _ in (*c.m, *c.k)}):
        return None
    steps = [terms.get((v,), 0) for v, _ in c.m]
    if terms.get((summed[0],)) != 1 or not steps[-1]:
        return None
    for outer, step, (_, extent) in zip(steps, steps[1:], c.m[1:], strict=False):
        if static_size(extent) is None or outer != step * (static_size(extent) or 0):
            return None
    assert isinstance(c.a, Load)
    return StridedRows(c.a, int(steps[-1]))


def _is_linear(terms: Mapping[tuple[Expr, ...], float], variables: set[Var]) -> bool:
    """True if each of ``variables`` occurs in a polynomial only by itself, times a number."""
    mixed = (m for m in terms if any(v in variables for atom in m for v in walk_exprs(atom)))
    return all(len(m) == 1 and isinstance(m[0], Var) for m in mixed)


def _run(task: Task, c: Contraction, depth: int) -> int:
    """Terms of a, from any multiple of their number on, that are equally far apart in memory, as the channels at one
    position of a window are: a power of two of at most ``depth``. All of a step if its addresses are not known."""
    place = _places(task, c)
    if place is None:
        return depth
    total = len(place)
    run, steps = 1, np.diff(place)
    even = steps == steps[:1]
    while 2 * run <= depth and even[np.arange(1, total) % (2 * run) != 0].all():
        run *= 2
    return run


def _places(task: Task, c: Contraction) -> NDArray[np.int64] | None:
    """The address of each term of a's first row; None if addresses are not known."""
    if _address(task, c, c.a) is None or not isinstance(c.a, Load):
        return None
    size = product([d for _, d in c.k])
    total = static_size(size) or 0
    terms = np.arange(total)
    at: dict[Expr, NDArray[np.int64]] = {v: np.zeros(1, np.int64) for v, _ in (*c.batch, *c.m, *c.n)}
    for v, extent in reversed(c.k):
        at[v] = terms % (static_size(extent) or 1)
        terms = terms // (static_size(extent) or 1)
    place = _values(_flat(c.a), at)
    return None if place is None else np.broadcast_to(place, total)


def _values(e: Expr, at: Mapping[Expr, NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """An integer expression at given values of indices, and at one for symbolic sizes; None if it has other
    operations."""
    if isinstance(e, Const):
        return np.asarray(e.value, np.int64)
    if isinstance(e, Var):
        return at.get(e, np.asarray(_SIZE, np.int64))
    if not isinstance(e, Binary) or e.op not in _INTEGER_OPS:
        return None
    a, b = _values(e.a, at), _values(e.b, at)
    return None if a is None or b is None else np.asarray(_INTEGER_OPS[e.op](a, b))


def _is_contiguous_along_sum(task: Task, c: Contraction) -> bool:
    terms = _address(task, c, c.b)
    return terms is not None and terms.get((c.k[-1][0],)) == 1


def _address(task: Task, c: Contraction, factor: Expr) -> Mapping[tuple[Expr, ...], float] | None:
    """The address of a factor in memory, as a polynomial of the indices; None if it is computed."""
    if not isinstance(factor, Load) or factor.buffer in task.producers or factor.buffer.layout is not None:
        return None
    simplifier = Simplifier()
    for v, extent in (*c.batch, *c.m, *c.n, *c.k):
        simplifier.bind(v, extent)
    return simplifier.poly(_flat(factor))


def _flat(load: Load) -> Expr:
    """The element that a load reads, counted from the buffer's first one."""
    buffer, address = load.buffer, index(0)
    for d, i in enumerate(load.indices):
        address = address + i * (buffer.strides[d] if buffer.strides else product(buffer.shape[d + 1 :]))
    return address
