"""The microkernel on codes of four bits: weights affine in a code, with a scale and an offset for each group of terms.

    for each group g:
        for eight terms:   for p in 4:   dots += a[2p, 2p + 1] · look_up(words >> 4 p)       two words of each column
                                         sums += a[2p, 2p + 1] · 1
        out[i, j] += scale[g, j] · dots[i, j] + offset[g, j] · sums[i]

Codes are exact in bf16, and so are their products with a: nothing is rounded but the sums, in f32. A vector of words is
loaded once for four pairs of terms; ``ir.analysis.codes`` describes their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskmap.ir.analysis.codes import TERMS, AffineForm, affine, find_code
from taskmap.ir.analysis.contraction import Contraction, unconverted
from taskmap.ir.builder import Builder
from taskmap.ir.construct import call, cast, const, index, ramp, static_size
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, LoopKind, Scope
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import bf16, f32
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cpu.matmul.dot_tile import pairs_of_bf16
from taskmap.schedules.cpu.matmul.summed_loops import Element

_PAIR = 2


@dataclass(frozen=True, slots=True)
class CodedContraction:
    """A contraction with weights affine in a code. ``groups`` of ``terms`` terms share ``weight``, the function of the
    code; ``contraction`` has the code in place of the weight, as bf16, and the first factor as it is stored."""

    instruction: Instruction
    contraction: Contraction
    weight: AffineForm
    groups: int
    terms: int


def find_coded(c: Contraction, target: CpuTarget) -> CodedContraction | None:
    """The contraction on codes that ``c`` is, on a target that multiplies pairs of bf16; None if it is none."""
    found, code, a = pairs_of_bf16(target), find_code(c.b), unconverted(c.a)
    extents = [static_size(extent) for _, extent in c.k]
    if found is None or code is None or a.dtype != bf16 or c.reduce.dtype != f32 or len(extents) > _PAIR:
        return None
    weight, terms = affine(c.b, code), extents[0]
    if weight is None or terms is None or None in extents or terms % TERMS:
        return None
    groups = math.prod(extent or 1 for extent in extents[1:])
    return CodedContraction(found, replace(c, a=a, b=code.a), weight, groups, terms)


@dataclass(frozen=True, slots=True)
class CodeOperands:
    """The elements of a tile: of a, of the codes, and of the functions of these."""

    a: Element
    code: Element
    scale: Element | None
    offset: Element | None


def emit_code_tile(
    b: Builder,
    values: Inliner,
    rows: int,
    columns: tuple[int, int],
    operands: CodeOperands,
    out: Buffer,
    coded: CodedContraction,
) -> None:
    """Adds the products of a tile of ``rows`` rows to the local buffer ``out``. columns: vectors, and their lanes."""
    (vectors, lanes), grouped = columns, len(coded.contraction.k) > 1
    with b.loop("group", coded.groups) as g:
        inside = values.nested()
        inside.bind(g, coded.groups)
        sums = _Sums(b, rows, vectors, lanes, coded.instruction, operands.offset is not None)
        with b.loop("step", coded.terms // TERMS) as s:
            step = inside.nested()
            step.bind(s, coded.terms // TERMS)
            sums.multiply(step, operands, s * TERMS, (g,) if grouped else ())
        first = (*((g,) if grouped else ()), index(0))
        for j in range(vectors):
            with b.loop("lane", lanes, LoopKind.VECTOR) as lane:
                step = inside.nested()
                step.bind(lane, lanes)
                at = lane + j * lanes
                scale, offset = (None if f is None else f(first, at, step) for f in (operands.scale, operands.offset))
                for i in range(rows):
                    total = out[i, at]
                    if offset is not None:
                        total = call("fma", offset, sums.total(i, lane), total)
                    dot = sums.dots[i, at]
                    b.store(out, (i, at), total + dot if scale is None else call("fma", scale, dot, total))


class _Sums:
    """The sums of a group in registers: of products, and of the rows of a, the same in each lane."""

    def __init__(
        self, b: Builder, rows: int, vectors: int, lanes: int, instruction: Instruction, with_rows: bool
    ) -> None:
        self.b, self.rows, self.vectors, self.lanes, self.instruction = b, rows, vectors, lanes, instruction
        self.dots = self._zeros("dots", vectors)
        self._rows = self._zeros("sums", 1) if with_rows else None

    def _zeros(self, name: str, vectors: int) -> Buffer:
        made = self.b.allocate(name, f32, (self.rows, vectors * self.lanes), Scope.REGISTER)
        for i in range(self.rows):
            for j in range(vectors):
                with self.b.loop("lane", self.lanes, LoopKind.VECTOR) as lane:
                    self.b.store(made, (i, lane + j * self.lanes), const(0, f32))
        return made

    def total(self, i: int, lane: Expr) -> Expr:
        """The sum of row i of a."""
        assert self._rows is not None
        return self._rows[i, lane]

    def multiply(self, values: Inliner, operands: CodeOperands, term: Expr, group: Sequence[Expr]) -> None:
        """Adds the products of eight terms from ``term`` on. The pairs of a vector of words follow one another: words
        are then loaded in the order of their addresses, in which a processor fetches them ahead."""
        b, lanes, pairs = self.b, self.lanes, range(TERMS // _PAIR)
        left = [b.allocate("a", bf16, (self.rows, _PAIR), Scope.REGISTER) for _ in pairs]
        for pair in pairs:
            for i in range(self.rows):
                with b.loop("lane", _PAIR, LoopKind.VECTOR) as lane:
                    step = values.nested()
                    step.bind(lane, _PAIR)
                    at = (*group, term + _PAIR * pair + lane)
                    b.store(left[pair], (i, lane), cast(operands.a(at, index(i), step), bf16))
        for j in range(self.vectors):
            for pair in pairs:
                right = b.allocate("b", bf16, (_PAIR * lanes,), Scope.REGISTER)
                with b.loop("lane", _PAIR * lanes, LoopKind.VECTOR) as lane:
                    step = values.nested()
                    step.bind(lane, _PAIR * lanes)
                    at = (*group, term + _PAIR * pair + lane % _PAIR)
                    b.store(right, (lane,), operands.code(at, lane // _PAIR + j * lanes, step))
                for i in range(self.rows):
                    self._add(self.dots, i, ramp(j * lanes, 1, lanes), left[pair], right)
        if self._rows is not None:
            ones = b.allocate("ones", bf16, (_PAIR * lanes,), Scope.REGISTER)
            with b.loop("lane", _PAIR * lanes, LoopKind.VECTOR) as lane:
                b.store(ones, (lane,), const(1, bf16))
            for pair in pairs:
                for i in range(self.rows):
                    self._add(self._rows, i, ramp(0, 1, lanes), left[pair], ones)

    def _add(self, to: Buffer, i: int, at: Expr, left: Buffer, right: Buffer) -> None:
        args = (to[i, at], left[i, ramp(0, 1, _PAIR)], right[ramp(0, 1, _PAIR * self.lanes)])
        self.b.store(to, (i, at), Intrinsic(self.instruction, args, f32, self.lanes))
