"""The microkernel on dot products of neighbours: a tile of sums of 32 bits, and operands in groups along the sum.

    for p:   b = group p of every column;   a = group p of every row;   acc[i, j] += a[i] · b[j]

A group is the k neighbours that one instruction multiplies: two of bf16, four bytes. B is packed in groups, so a vector
of it is one load; a group of A is broadcast. Of bytes, A is unsigned and B is signed: packing makes them so
(``taskmap.graph.passes.byte_products``). A sum that is not whole groups ends with a group that zeros fill, in both
operands, so values beside an edge never enter it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.analysis.contraction import BYTES, Contraction, unconverted
from taskmap.ir.analysis.positions import flatten
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import cast, const, index, minimum, product, ramp, select, static_size
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import table_of
from taskmap.ir.nodes import Buffer, Dim, Expr, Intrinsic, LoopKind, Scope
from taskmap.ir.select.microkernels import choose_for_thread, product_of_rows
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, compute_type, i8, i32, u8
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.matmul_form import packed_group, packed_panels
from taskmap.schedules.cpu.matmul.column_copies import contains_sum
from taskmap.schedules.cpu.matmul.config import Columns
from taskmap.schedules.cpu.matmul.group_copies import lies_by_terms
from taskmap.schedules.cpu.matmul.summed_loops import Element
from taskmap.schedules.cpu.matmul.term_loops import term_loops

_FEWEST_ROWS = 8
"""The fewest rows that pay for a copy of B in groups, if its columns are neighbours in memory. A copy of columns that
lie apart pays for one row: in place, they are collected element by element."""


def group_size(a: DType, b: DType, target: CpuTarget) -> int:
    """Neighbours of operands of these types that one instruction of ``target`` multiplies, 1 without such an
    instruction: the size of the groups in which B is packed. Bytes of either sign count as unsigned by signed."""
    found = _instruction(u8, i8, target) if a in BYTES and b in BYTES else _instruction(a, b, target)
    return 1 if found is None else _depth(found)


def dot_product(a: DType, b: DType, target: CpuTarget) -> DotProduct | None:
    """The dot product of operands of these types on ``target``; None if it has no instruction for them."""
    found = _instruction(a, b, target)
    return None if found is None else DotProduct(found)


def pairs_of_bf16(target: CpuTarget) -> Instruction | None:
    """The instruction of ``target`` that adds products of pairs of bf16 to vectors of f32; None without one."""
    return _instruction(bf16, bf16, target)


def copies_pairs(rows: int, a: DType, b: DType, target: CpuTarget, *, contiguous: bool) -> bool:
    """True if a product of bf16 with ``rows`` rows copies a B that is not packed in pairs. contiguous: its columns are
    neighbours in memory."""
    return (a, b) == (bf16, bf16) and pairs_of_bf16(target) is not None and (not contiguous or rows >= _FEWEST_ROWS)


def _instruction(a: DType, b: DType, target: CpuTarget) -> Instruction | None:
    sums = i32 if a in BYTES else compute_type(a)
    if not a.is_float and a not in BYTES:
        return None
    lanes = target.lanes(4)
    found = choose_for_thread(product_of_rows(a, b, sums, lanes), target, table_of(target)).by
    return found if found is not None and found.columns == lanes and _depth(found) > 1 else None


def _depth(instruction: Instruction) -> int:
    assert isinstance(instruction.spec, MatMulSpec)
    return instruction.spec.k


@dataclass(frozen=True, slots=True)
class DotProduct:
    """The instruction of a microkernel on dot products."""

    instruction: Instruction

    @property
    def group(self) -> int:
        """Terms of a group."""
        return _depth(self.instruction)

    @property
    def type_of_b(self) -> DType:
        """The type of the second operand."""
        assert isinstance(self.instruction.spec, MatMulSpec)
        return self.instruction.spec.b


@dataclass(frozen=True, slots=True)
class GroupedContraction(DotProduct):
    """A contraction of ``depth`` terms on dot products; its factors have the operands' own types. loops: the extents of
    the loops over its whole groups, outermost first (``term_loops``). copied: how columns of B lie in memory that are
    copied in groups (``group_copies``); None if B is stored in groups."""

    contraction: Contraction
    depth: int
    loops: tuple[int, ...]
    copied: Columns | None = None

    @property
    def whole(self) -> int:
        """Groups without padding."""
        return self.depth // self.group

    @property
    def rest(self) -> int:
        """Terms of one more group, which zeros fill; 0 if there is none."""
        return self.depth % self.group

    def part(self, number: Expr, parts: int, simplifier: Simplifier) -> tuple[Dim, tuple[Dim, ...]]:
        """The first group of part ``number`` of the sum, and the extents of the loops over its whole groups."""
        outer, *inner = self._loops_of(parts)
        depth = -(-outer // parts)
        loops = (simplifier.dim(minimum(outer - number * depth, depth)), *inner)
        return simplifier.dim(number * depth * math.prod(inner)), loops

    def most(self, parts: int) -> int:
        """Whole groups of a part, at most."""
        outer, *inner = self._loops_of(parts)
        return -(-outer // parts) * math.prod(inner)

    def _loops_of(self, parts: int) -> tuple[int, ...]:
        """The loops over whole groups, of which the first can be split into so many parts."""
        return self.loops if parts <= self.loops[0] else (self.whole,)

    def tail(self, a: Element) -> Element:
        """Operand ``a`` with zeros behind the end of the sum."""

        def element(at: Sequence[Expr], offset: Expr, values: Inliner) -> Expr:
            (k,) = at
            value = a((minimum(k, self.depth - 1),), offset, values)
            return select(k < self.depth, value, const(0, value.dtype))

        return element


def find_dots(task: Task, c: Contraction, target: CpuTarget) -> GroupedContraction | None:
    """The dot products that compute a contraction on ``target``: None unless both factors have the types of one of its
    instructions without rounding, and B is packed in its groups, or worth a copy in groups."""
    a, b = unconverted(c.a), unconverted(c.b)
    found = _instruction(a.dtype, b.dtype, target)
    depth = static_size(c.k[0][1]) if len(c.k) == 1 else None
    if found is None or not depth:
        return None
    narrow, copied = replace(c, a=a, b=b), None
    if packed_group(task, c) != _depth(found):
        copied = _columns_to_copy(task, narrow) if depth >= _depth(found) else None
        if copied is None:
            return None
    return GroupedContraction(found, narrow, depth, term_loops(narrow, depth, _depth(found)), copied)


def _columns_to_copy(task: Task, c: Contraction) -> Columns | None:
    """The place in memory of the columns of a B that is copied in groups; None if it is better read in place."""
    rows, columns = (static_size(product([d for _, d in axes])) for axes in (c.m, c.n))
    if rows is None or columns is None or len(c.n) != 1 or packed_panels(task, c) is not None:
        return None
    if contains_sum(task, c.b):
        return None
    lie = Columns.APART if lies_by_terms(task, c) else Columns.NEIGHBOURS
    return lie if lie is Columns.APART or rows >= _FEWEST_ROWS else None


@contextmanager
def _counted(b: Builder, values: Inliner, loops: Sequence[Dim]) -> Iterator[Expr]:
    """Loops of these extents, and the number of their step."""
    with ExitStack() as stack:
        steps = [stack.enter_context(b.loop("k", index(extent))) for extent in loops]
        for v, extent in zip(steps, loops, strict=True):
            values.bind(v, extent)
        yield flatten(list(zip(steps, loops, strict=True)))


def emit_dot_tile(
    b: Builder,
    values: Inliner,
    rows: int,
    columns: tuple[int, int],
    loops: Sequence[Dim],
    a: Element,
    element_b: Element,
    out: Buffer,
    dots: DotProduct,
    *,
    first: Dim = 0,
    row: Expr | None = None,
    resume: bool = False,
) -> None:
    """Multiply a tile of ``rows`` rows into the local buffer ``out``, from ``row`` on (default 0), over the groups from
    group ``first`` on that ``loops`` of these extents count, outermost first.

    columns: the number of vectors and their lanes; resume: add to the contents of ``out``.
    """
    (vectors, width), size, spec = columns, dots.group, dots.instruction.spec
    assert isinstance(spec, MatMulSpec)
    owner = repeat(rows, vectors) * repeat(1, width)
    acc = b.allocate("acc", spec.c, owner.task_shape, Scope.REGISTER, owner=owner)
    place = region(out, (index(0) if row is None else row, 0), acc.shape)
    if resume:
        b.move(acc, place)
    else:
        b.fill(acc, const(0, spec.c))
    inside = values.nested()
    with _counted(b, inside, loops) as p:
        start = (index(first) + p) * size
        left = b.allocate("a", spec.a, (rows, size), Scope.REGISTER)
        right = b.allocate("b", spec.b, (vectors * width * size,), Scope.REGISTER)
        for j in range(vectors):
            with b.loop("lane", width * size, LoopKind.VECTOR) as lane:
                step = inside.nested()
                step.bind(lane, width * size)
                value = element_b((start + lane % size,), lane // size + j * width, step)
                b.store(right, (lane + j * width * size,), cast(value, spec.b))
        for i in range(rows):
            with b.loop("lane", size, LoopKind.VECTOR) as lane:
                step = inside.nested()
                step.bind(lane, size)
                b.store(left, (i, lane), cast(a((start + lane,), index(i), step), spec.a))
        for i in range(rows):
            one = left[i, ramp(0, 1, size)]
            for j in range(vectors):
                at = ramp(j * width, 1, width)
                args = (acc[i, at], one, right[ramp(j * width * size, 1, width * size)])
                b.store(acc, (i, at), Intrinsic(dots.instruction, args, spec.c, width))
    b.move(place, acc)
