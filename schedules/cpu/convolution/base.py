"""The common base of the convolution templates: a block of output positions, phase by phase."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, maximum, minimum, product, static_size
from taskmap.ir.loops import Shared, worth_sharing
from taskmap.ir.nodes import Dim, Expr, Kernel
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import DType, compute_type
from taskmap.schedules.common.convolution_geometry import Convolution, StridePhase
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cpu.support.kernels import kernel_of

_SHARED_FROM = 40_000
"""The least number of products for which several threads are faster than one."""
INPUT_TILE_BYTES = 256 << 10
"""Target size of an input tile, so that it stays in a core's private cache."""

OfPhase = Callable[[Inliner, tuple[StridePhase, ...], Dim, Dim], None]
"""The work of a phase: (values, phase, rows, columns of the block that belong to it)."""


@dataclass(frozen=True, slots=True)
class OutputBlock:
    """One iteration of the parallel loop: an image, a group, and output positions (of each phase) from ``first`` on."""

    image: Expr
    group: Expr
    first: tuple[Expr, Expr, Expr]
    rows: int
    columns: int


@dataclass(slots=True)
class ConvolutionBase:
    """Base of the templates of dense and depthwise convolutions."""

    task: Task
    conv: Convolution
    target: CpuTarget
    b: Builder = field(default_factory=Builder)

    @property
    def accumulate(self) -> DType:
        """The type of the sums."""
        return compute_type(self.conv.reduce.dtype)

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.target.lanes(self.accumulate.bytes)

    @property
    def shared(self) -> Shared:
        """True if the convolution is long enough for several threads."""
        c = self.conv
        products = product([c.batch, c.groups, c.out_channels, *c.out, c.channels, *c.kernel])
        return worth_sharing(products, _SHARED_FROM)

    def finished(self, note: str) -> Kernel:
        """The kernel that was built."""
        return kernel_of(self.task, self.b, note)

    def each_phase(self, values: Inliner, block: OutputBlock, body: OfPhase) -> None:
        """Calls body(values, phase, rows, columns) for every phase of the window, with the part of the block that
        belongs to it."""
        c = self.conv
        for phase in itertools.product(*c.phases):
            plane, row, column = phase
            if any(static_size(p.count(n)) == 0 for p, n in zip(phase, c.out, strict=True)):
                continue
            inside = values.nested()
            with self.b.when(inside.simplifier(block.first[0] < plane.count(c.out[0]))):
                rows = self._within(inside, "rows", block.first[1], block.rows, row.count(c.out[1]))
                columns = self._within(inside, "columns", block.first[2], block.columns, column.count(c.out[2]))
                body(inside, phase, rows, columns)

    def _within(self, values: Inliner, name: str, first: Expr, size: int, extent: Dim) -> Dim:
        """The number of positions from ``first`` on, at most ``size``, that lie below ``extent``."""
        known = static_size(extent)
        if known is not None and static_size(first) == 0:
            return min(size, known)
        left = maximum(minimum(index(extent) - first, size), 0)
        count = self.b.let(name, values.simplifier(left))
        values.bind_value(count, size)
        return static_size(count) if static_size(count) is not None else count  # type: ignore[return-value]

    def output(
        self, phase: Sequence[StridePhase], block: OutputBlock, row: Expr, column: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """The output position of a row and column of a block in one phase."""
        places = (block.first[0], block.first[1] + row, block.first[2] + column)
        z, y, x = (q * p.every + p.first for q, p in zip(places, phase, strict=True))
        return z, y, x

    def kernel_at(self, phase: Sequence[StridePhase], taps: Sequence[Expr]) -> tuple[Expr, ...]:
        """The element of the kernel at the given taps of one phase."""
        return tuple(t * p.tap_step + p.tap for t, p in zip(taps, phase, strict=True))
