"""The microkernel on dot products of neighbours: a tile of sums of 32 bits, and operands in groups along the sum.

    for p:   b = group p of every column;   a = group p of every row;   acc[i, j] += a[i] · b[j]

A group is the k neighbours that one instruction multiplies: two of bf16, four bytes. B is packed in groups, so a vector
of it is one load; a group of A is broadcast. Of bytes, A is unsigned and B is signed: packing makes them so
(``taskmap.graph.passes.byte_products``). A sum that is not whole groups ends with a group that zeros fill, in both
operands, so values beside an edge never enter it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.analysis.contraction import BYTES, Contraction, unconverted
from taskmap.ir.analysis.positions import flatten
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import cast, const, index, minimum, ramp, select, static_size
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import table_of
from taskmap.ir.nodes import Buffer, Dim, Expr, Intrinsic, LoopKind, Scope
from taskmap.ir.select.microkernels import choose_for_thread, product_of_rows
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, compute_type, i8, i32, u8
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.matmul_form import packed_group
from taskmap.schedules.cpu.matmul.term_loops import term_loops

Element = Callable[[Sequence[Expr], Expr, Inliner], Expr]


def group_size(a: DType, b: DType, target: CpuTarget) -> int:
    """Neighbours of operands of these types that one instruction of ``target`` multiplies, 1 without such an
    instruction: the size of the groups in which B is packed. Bytes of either sign count as unsigned by signed."""
    found = _instruction(u8, i8, target) if a in BYTES and b in BYTES else _instruction(a, b, target)
    return 1 if found is None else _depth(found)


def pairs_of_bf16(target: CpuTarget) -> Instruction | None:
    """The instruction of ``target`` that adds products of pairs of bf16 to vectors of f32; None without one."""
    return _instruction(bf16, bf16, target)


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
class GroupedContraction:
    """A contraction of ``depth`` terms on dot products; its factors have the operands' own types. loops: the extents of
    the loops over its whole groups, outermost first (``term_loops``)."""

    instruction: Instruction
    contraction: Contraction
    depth: int
    loops: tuple[int, ...]

    @property
    def group(self) -> int:
        """Terms of a group."""
        return _depth(self.instruction)

    @property
    def whole(self) -> int:
        """Groups without padding."""
        return self.depth // self.group

    def loops_of(self, parts: int) -> tuple[int, ...]:
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
    """The dot products that compute a contraction on ``target``: None unless B is packed in the groups of one of its
    instructions, whose types both factors have without rounding."""
    a, b = unconverted(c.a), unconverted(c.b)
    found = _instruction(a.dtype, b.dtype, target)
    depth = static_size(c.k[0][1]) if len(c.k) == 1 else None
    if found is None or depth is None or packed_group(task, c) != _depth(found):
        return None
    narrow = replace(c, a=a, b=b)
    return GroupedContraction(found, narrow, depth, term_loops(narrow, depth, _depth(found)))


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
    dots: GroupedContraction,
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
