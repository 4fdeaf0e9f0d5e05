"""All entries for GPUs, across the families."""

from __future__ import annotations

from taskmap.ir.isa.approximate import APPROXIMATE
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.hopper import HOPPER
from taskmap.ir.isa.memory import MEMORY
from taskmap.ir.isa.mma import MMA
from taskmap.ir.isa.sync import SYNC
from taskmap.ir.isa.warp import WARP
from taskmap.ir.isa.wmma import WMMA


def gpu_instructions() -> tuple[Instruction, ...]:
    """Every entry for a GPU."""
    return (*MMA, *WMMA, *MEMORY, *WARP, *APPROXIMATE, *SYNC, *HOPPER)
