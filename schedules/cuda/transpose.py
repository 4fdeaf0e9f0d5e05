"""Element-wise work on a GPU that reads along one axis of memory and writes along another, through shared memory.

    y[j, i] = x[i, j]
    Compute(y).tile(32, 32).to(BLOCK)
        .move("x", SHARED, by=repeat(4, 1) * spatial(8, 32)).pad(1)     neighbours j lie together in x
        .done(by=repeat(4, 1) * spatial(8, 32))                         neighbours i lie together in y

Lines of the tile are padded by one element, so that a column lies in as many banks as it has elements.

Elements of fewer than 32 bits are moved as vectors if sizes and addresses allow it: a thread reads up to 16 bytes along
j, and writes as many along i, which it gathers from as many lines of a tile of 64 × 64. Lines are then padded by one
word of 32 bits, and a warp takes 8 columns of 4 vectors, so that its lanes use different banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.stages import Compute
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.nodes import Kernel, Scope
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.common.access import MemoryStep
from taskmap.schedules.cuda.support.vectors import fills, vector_lanes
from taskmap.schedules.strategies.transpose import TransposedTask

_THREADS = 256
_WORD = 4


@dataclass(frozen=True, slots=True)
class _Tile:
    """A square of ``side`` elements, of which a thread takes ``lanes`` neighbours at a time."""

    side: int
    lanes: int

    @property
    def reading(self) -> TaskMapping:
        """The mapping of threads to the vectors that they read: line, and vector in the line."""
        across = self.side // self.lanes
        return repeat(self.side * across // _THREADS, 1) * spatial(_THREADS // across, across)

    @property
    def writing(self) -> TaskMapping:
        """The mapping of threads to the vectors that they write: column, and vector in the column."""
        if self.lanes == 1:
            return self.reading
        down = self.side // self.lanes
        warps = spatial(_THREADS // down // 8, down // 4)
        return repeat(self.side * down // _THREADS, 1) * warps * spatial(8, 4)

    def padding(self, element: int) -> int:
        """The elements between lines, for elements of ``element`` bytes."""
        return 1 if self.lanes == 1 else max(1, _WORD // element)


def _tile(task: TransposedTask, walks: Sequence[MemoryStep]) -> _Tile:
    t, shape = task.t, task.whole.domain.shape
    staged = {id(w.buffer) for w in t.staged}
    rest = [w for w in walks if id(w.buffer) not in staged]
    lanes = min(
        vector_lanes(t.staged, t.axes, task.whole.runs[t.across], shape),
        vector_lanes(rest, t.axes, task.whole.runs[t.along], shape),
    )
    while lanes > 1 and not (all(fills(task.whole.extents[r], lanes) for r in (t.along, t.across))):
        lanes //= 2
    narrow = min(w.buffer.dtype.bytes for w in t.staged) < _WORD
    return _Tile(64, lanes) if narrow and lanes > 1 else _Tile(32, 1)


def schedule_transpose(task: TransposedTask, walks: Sequence[MemoryStep], target: Target) -> Kernel:
    """The kernel of a task that transposes. walks: all its accesses, in terms of the axes."""
    tile, anchor = _tile(task, walks), task.turned
    kernel = task.kernel(_strategy(anchor, tile), anchor, target).launched(min_blocks=1)
    note = f"cuda.transpose({task.whole.size}, tile={tile.side}x{tile.side}, threads={_THREADS}, lanes={tile.lanes})"
    return replace(kernel, note=note)


def _strategy(turned: Task, tile: _Tile) -> Strategy:
    """The decomposition of a transpose."""
    tree = Compute(turned).tile(tile.side, tile.side).to(Level.BLOCK).layout("column").group(1)
    for x in turned.inputs:
        tree = tree.move(x.name, Scope.SHARED, by=tile.reading).pad(tile.padding(x.dtype.bytes))
    return tree.done(by=tile.writing)
