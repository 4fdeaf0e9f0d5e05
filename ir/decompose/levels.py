"""The levels of workers that carry out a spec, and the names of the memories that its operands are in."""

from __future__ import annotations

from enum import Enum

from taskmap.ir.expressions import Scope


class Level(Enum):
    """A group of workers. On a GPU each level but KERNEL consists of threads; a CORE runs one thread of a CPU."""

    KERNEL = "Kernel"
    CLUSTER = "Cluster"
    BLOCK = "Block"
    WARPGROUP = "Warpgroup"
    WARP = "Warp"
    QUAD_PAIR = "QuadPair"
    THREAD = "Thread"
    CORE = "Core"
    LANES = "Lanes"

    @property
    def threads(self) -> int:
        """The threads of one worker of this level; 0 if the level does not determine them."""
        return _THREADS.get(self, 0)

    def is_above(self, other: Level) -> bool:
        """True if a worker of ``other`` is a part of a worker of this level."""
        return any(self in path[: path.index(other)] for path in _PATHS if other in path)

    def sees(self, scope: Scope) -> bool:
        """True if a worker of this level has memory of that scope that no other worker of the level uses."""
        return self is Level.BLOCK if scope is Scope.SHARED else self not in (Level.KERNEL, Level.CLUSTER)


_GPU = (
    Level.KERNEL, Level.CLUSTER, Level.BLOCK, Level.WARPGROUP, Level.WARP, Level.QUAD_PAIR, Level.THREAD, Level.LANES,
)  # fmt: skip
_PATHS = (_GPU, (Level.KERNEL, Level.CORE, Level.LANES))
_THREADS = {Level.WARPGROUP: 128, Level.WARP: 32, Level.QUAD_PAIR: 8, Level.THREAD: 1}

HELD = (Scope.REGISTER, Scope.FRAGMENT)
"""The memories that belong to threads: registers, and those of a tensor instruction whose owners are not documented."""
SCOPE_NAMES = {
    Scope.GLOBAL: "GL",
    Scope.SHARED: "SH",
    Scope.LOCAL: "LM",
    Scope.FRAGMENT: "FR",
    Scope.REGISTER: "RF",
}
"""The memories, as the literature abbreviates them."""
