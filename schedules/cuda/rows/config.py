"""The distribution of rows over threads and blocks, and its choice by sizes and target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskmap.ir.construct import ceil_div, product, static_size
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.target import GpuTarget
from taskmap.schedules.common.access import MemoryStep, memory_order
from taskmap.schedules.common.row_domain import RowDomain, reductions_of
from taskmap.schedules.cuda.support.launch import WARP
from taskmap.schedules.cuda.support.vectors import fills, vector_lanes

_THREADS = 128
_LARGEST_TEAM = 1024
_SLOTS_OF_WARP = 8
_MOST_SLOTS = 16
_LOOP_TEAM = 256
_FEWEST_PARTS = 4
_COMPUTED_BYTES = 4
"""Bytes of an element that is computed from one of the row and kept, too."""
_OTHER_REGISTERS = 32
_WALKING_THREADS = 512
"""Threads of a block that walks its rows again in every pass: each has enough registers for an unrolled walk."""
_BLOCKS_PER_SM = 2
"""Blocks per multiprocessor if several share a row because there are few rows."""
_LEAST_STEPS = 4
"""Vectors for each thread of a block that shares a row."""
_LARGEST_CLUSTER = 8
"""Blocks of the largest cluster that every GPU with clusters has."""
_FIRST_WITH_CLUSTERS = 90
"""The compute capability."""
CHAIN = 512
"""Vectors of a sum of floats that a thread adds one after another."""


@dataclass(frozen=True, slots=True)
class RowConfig:
    """The distribution of rows: ``team`` threads take a row, ``lanes`` elements each at a time, ``slots`` times.

    slots 0: as often as needed, walking the row again in each pass. columns: for rows that are interleaved in memory,
    like the columns of a matrix, the number of them that neighbouring threads take; 0 for contiguous rows. parts: the
    number of blocks that share a row; slots are 0 then, because the last block alone goes on after the first pass.
    cluster: the blocks that share a row form a cluster, and all go on, each with its part of the row in every pass.
    """

    team: int
    lanes: int
    slots: int
    columns: int = 0
    parts: int = 1
    cluster: bool = False

    @property
    def teams(self) -> int:
        """Rows that a block takes at once."""
        return self.columns or (1 if self.parts > 1 else max(1, _THREADS // self.team))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.team * self.teams


def row_config(rows: Dim, units: Dim, lanes: int, target: GpuTarget) -> RowConfig:
    """The configuration for ``rows`` rows of ``units`` vectors: a warp if eight vectors for each of its threads hold
    the row, else as many threads as it takes; more if there are too few rows to fill the GPU."""
    size = static_size(units)
    if size is None:
        return RowConfig(_LOOP_TEAM, lanes, 0)
    most = min(_LARGEST_TEAM, _power(size))
    team = min(WARP, most)
    while team < most and size > team * _SLOTS_OF_WARP:
        team *= 2
    count = static_size(rows)
    while count is not None and team < most and count * team < target.cores * target.threads_per_sm // 4:
        team *= 2
    slots = -(-size // team)
    return RowConfig(team, lanes, slots if slots <= _MOST_SLOTS else 0)


def column_config(rows: Dim, length: Dim, target: GpuTarget) -> RowConfig:
    """The configuration for interleaved rows: a warp of columns, and as many threads to each as it takes to fill the
    GPU."""
    size, count = static_size(length), static_size(rows)
    team = _FEWEST_PARTS
    while (
        team < WARP and (size is None or size > 2 * team) and (count or 0) * team < target.cores * target.threads_per_sm
    ):
        team *= 2
    slots = 0 if size is None else -(-size // team)
    return RowConfig(team, 1, slots if slots <= _MOST_SLOTS else 0, WARP)


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True, slots=True)
class RowProblem:
    """The rows of a task as the choice sees them: their number, the merged axes along them, and its accesses in terms
    of ``axes``. runs, extents: the merged axes of a row, and their sizes."""

    frame: RowDomain
    axes: tuple[Var, ...]
    walks: Sequence[MemoryStep]
    runs: Sequence[Sequence[int]]
    extents: Sequence[Dim]
    rows: Dim

    def units(self, lanes: int) -> list[Dim]:
        """The vectors along each of a row's merged axes."""
        return [*self.extents[:-1], ceil_div(self.extents[-1], lanes)]

    def steps(self, c: RowConfig) -> Dim:
        """The vectors of a row that a thread takes."""
        return ceil_div(ceil_div(product(self.units(c.lanes)), c.team), c.parts)

    def length(self, c: RowConfig) -> Dim:
        """The vectors that a thread group takes together."""
        return product(self.units(c.lanes)) if c.parts == 1 else product([self.steps(c), c.team])

    def share(self, c: RowConfig) -> Dim:
        """The vectors of a row that a block takes. Those of a cluster take equally many, for they wait for each other;
        whole warps, so that each begins where a line of memory does if the row does."""
        if not c.cluster:
            return self.length(c)
        return product([ceil_div(product(self.units(c.lanes)), c.parts * WARP), WARP])

    def is_long(self, c: RowConfig) -> bool:
        """True if a thread walks, or may walk, more than a chain."""
        steps = static_size(self.steps(c))
        return not c.slots and (steps is None or steps > CHAIN)

    def choose(self, target: GpuTarget) -> RowConfig:
        """The default configuration; it holds the row in registers only if they suffice."""
        full, extents = self.frame.rows.full, self.extents
        order = [d for d in memory_order(self.frame.task, full) if static_size(full.shape[d]) != 1]
        if order and order[-1] not in self.frame.rows.reduced:
            found = column_config(self.rows, product(extents), target)
        else:
            lanes = vector_lanes(self.walks, self.axes, self.runs[-1], full.shape)
            while not fills(extents[-1], lanes) and lanes > 1:
                lanes //= 2
            found = row_config(self.rows, product(self.units(lanes)), lanes, target)
        parts = self._parts(found, target)
        if parts > 1:
            team = min(_WALKING_THREADS // (found.columns or 1), max(found.team, _LOOP_TEAM // (found.columns or 1)))
            return replace(found, slots=0, team=team, parts=parts)
        if found.slots and self._fits(found, target):
            return found
        return self._cluster(found, target) or self._walking(found)

    def _fits(self, c: RowConfig, target: GpuTarget) -> bool:
        """True if a thread's registers hold its elements, and as many that it computes from them."""
        held = c.slots * c.lanes * (self.frame.rows.full.dtype.bytes + _COMPUTED_BYTES) // 4
        available = min(target.registers_per_thread, target.registers_per_sm // c.threads) - _OTHER_REGISTERS
        return held <= available

    def _walking(self, c: RowConfig) -> RowConfig:
        """The same with a walk along the row, or along its part, in every pass."""
        return replace(c, slots=0, team=min(c.team, _WALKING_THREADS // (c.columns or 1)))

    def _cluster(self, c: RowConfig, target: GpuTarget) -> RowConfig | None:
        """The same by a cluster of blocks to each row, if it is walked several times and there are too few rows to fill
        the GPU: as many blocks as it runs at once, and the most threads whose registers hold their parts."""
        count, size = static_size(self.rows), static_size(product(self.units(c.lanes)))
        if target.capability < _FIRST_WITH_CLUSTERS or c.columns or one_walk(self.frame):
            return None
        if count is None or size is None:
            return None
        parts = _LARGEST_CLUSTER
        while parts > 1 and count * parts > target.cores:
            parts //= 2
        if parts == 1:
            return None
        mine = -(-size // parts)
        for team in (_LARGEST_TEAM, _LARGEST_TEAM // 2, _LARGEST_TEAM // 4):
            slots = -(-mine // team)
            found = RowConfig(team, c.lanes, slots, parts=parts, cluster=True)
            if slots <= _MOST_SLOTS and self._fits(found, target):
                return found
        return self._walking(RowConfig(_LARGEST_TEAM, c.lanes, 0, parts=parts, cluster=True))

    def _parts(self, c: RowConfig, target: GpuTarget) -> int:
        """The number of blocks that share a row: as many as fill the GPU, each with enough to do; 1 if a size is
        symbolic."""
        count = static_size(self.rows)
        if count is None or not one_walk(self.frame):
            return 1
        blocks = -(-count // (c.columns or 1))
        wanted = _BLOCKS_PER_SM * target.cores // blocks
        size = static_size(product(self.extents))
        if size is None:
            return wanted if count == 1 else 1
        return min(wanted, size // (c.lanes * _WALKING_THREADS // (c.columns or 1) * _LEAST_STEPS))


def one_walk(frame: RowDomain) -> bool:
    """True if the first walk along the row computes all reductions and full outputs."""
    level, task = frame.depths(), frame.task
    walked = [s for s in task.stages if reductions_of(s) or (s.out in task.outputs and frame.is_full(s.out))]
    return all(level[s.out] == 0 for s in walked)
