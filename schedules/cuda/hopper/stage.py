"""An operand in the stages of a ring, in the layout that wgmma reads: lines of 128 bytes with swizzled chunks."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import as_expr, const, constant_value, index, load
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, TensorMap
from taskmap.ir.types import i32, i64
from taskmap.schedules.cuda.hopper.tma_descriptor import LINE_BYTES, TmaDescriptor

_ATOM = 1024
"""Bytes of eight lines, the period of the swizzle."""
_CHUNK = 16


@dataclass(frozen=True, slots=True)
class StageTile:
    """One operand in shared memory: for each stage, boxes of lines of 128 bytes; ``extent`` of its rows or columns."""

    buffer: Buffer
    along_k: bool
    extent: int
    boxes: TmaDescriptor | None = None
    map: TensorMap | None = None

    @property
    def line(self) -> int:
        """Elements of a line."""
        return LINE_BYTES // self.buffer.dtype.bytes

    @property
    def count(self) -> int:
        """Boxes in a stage."""
        return 1 if self.along_k else self.extent // self.line

    def descriptor(self, first: Expr, kk: Expr, stage: Expr) -> Expr:
        """The operand of one instruction: from row (or column) ``first`` and term ``kk`` on."""
        box, within = divmod(int(constant_value(kk) or 0), self.line)  # a symbolic one stays within the first box
        where = (
            (stage, index(box), first, index(within) if constant_value(kk) is not None else kk)
            if self.along_k
            else (stage, first // self.line, kk, index(0))
        )
        leading = _CHUNK if self.along_k else int(self.buffer.shape[2]) * LINE_BYTES  # type: ignore[arg-type]  # tiles have plain sizes
        args = (as_expr(LINE_BYTES), load(self.buffer, where), const(leading, i32), const(_ATOM, i32))
        return Intrinsic(instruction_named("wgmma_descriptor"), args, i64, 1)
