"""A spec as statements: what is executed in place of a micro-kernel that has no twin.

Workers that hold operands in registers exchange them by way of shared memory, and each computes what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, const, index
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.micro.twin import element
from taskmap.ir.decompose.ownership import share
from taskmap.ir.decompose.spec import Operand, Spec
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Body, Expr, LoopKind, Region, Scope
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD

_BARRIER = 8
"""The first of the named barriers by which warpgroups meet."""


@dataclass(frozen=True, slots=True)
class ExecutedSpec:
    """Writes a spec on the regions of a call. owners: of operands in the registers of several workers. threads: of the
    block; 0 on a CPU."""

    spec: Spec
    owners: Mapping[str, TaskMapping]
    regions: Sequence[Region]
    threads: int
    b: Builder = field(default_factory=Builder)

    def body(self) -> Body:
        """The statements: c += a @ b, or dst = src."""
        *read, written = self.spec.operands
        sources = [self.readable(o, r) for o, r in zip(read, self.regions, strict=False)]
        target = self.regions[-1]
        with self.each(written, target) as at:
            where = element(target, at)
            if self.spec.kind == "matmul":
                (i, j), (a, b) = at, sources
                with self.b.loop("k", self.shape(read[0])[1], self.kind) as k:
                    terms = (a.buffer[element(a, (i, k))], b.buffer[element(b, (k, j))])
                    x, y = (cast(term, written.dtype) for term in terms)
                    self.b.store(target.buffer, where, target.buffer[where] + x * y)
            else:
                (src,) = sources
                self.b.store(target.buffer, where, src.buffer[element(src, at)])
        return self.b.body()

    @property
    def workers(self) -> int:
        """The workers that do it together."""
        return self.spec.level.threads or self.threads or 1

    @property
    def kind(self) -> LoopKind:
        """Of loops: those over registers are unrolled."""
        held = any(r.buffer.scope is Scope.REGISTER for r in self.regions)
        return LoopKind.UNROLLED if held else LoopKind.SERIAL

    @contextmanager
    def each(self, operand: Operand, region: Region) -> Iterator[tuple[Expr, ...]]:
        """Each element of an operand, by the worker that holds it; of memory, shared out among the workers."""
        shape = self.shape(operand)
        if self.workers == 1:
            with self.b.grid([f"i{d}" for d in range(len(shape))], shape, self.kind) as at:
                yield at
            return
        mapping = self.owners.get(operand.name) or share(shape, region.buffer.dtype.bytes, self.workers)
        worker = THREAD if self.workers >= self.threads else THREAD % self.workers
        with self.b.when(True if mapping.num_workers == self.workers else worker < mapping.num_workers):  # noqa: SIM117
            with self.b.mapped([f"i{d}" for d in range(len(shape))], mapping, worker) as at:
                yield at

    def readable(self, operand: Operand, region: Region) -> Region:
        """The operand where every worker can read it."""
        shape = self.shape(operand)
        same = self.spec.kind == "move" and operand.name in self.owners
        if self.workers == 1 or operand.name not in self.owners or (same and self.held_alike):
            return region
        groups = max(1, self.threads // self.workers)
        scratch = self.b.allocate(f"{operand.name}_exchanged", operand.dtype, (groups, *shape), Scope.SHARED)
        group = index(0) if groups == 1 else THREAD // self.workers
        self.meet()
        with self.each(operand, region) as at:
            self.b.store(scratch, (group, *at), region.buffer[element(region, at)])
        self.meet()
        return Region(scratch, (group, *[index(0)] * len(shape)), (1, *shape))

    @property
    def held_alike(self) -> bool:
        """True if a copy leaves each element with its holder."""
        src, dst = (self.owners.get(o.name) for o in self.spec.operands[:2])
        return src is not None and src == dst

    def meet(self) -> None:
        """The workers wait for each other."""
        if self.spec.level is Level.BLOCK:
            self.b.barrier()
        elif self.workers == Level.WARP.threads:
            self.b.invoke(instruction_named("warp_sync"))
        else:
            number = cast(THREAD // self.workers + _BARRIER, i32)
            self.b.invoke(instruction_named("barrier_sync"), number, const(self.workers, i32))

    def shape(self, operand: Operand) -> tuple[int, ...]:
        """The shape of an operand."""
        found = self.spec.static_shape(operand)
        assert found is not None
        return found
