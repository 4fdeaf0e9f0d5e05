"""The instructions of GPUs, all families together."""

from __future__ import annotations

from taskmap.ir.instruction import Instruction
from taskmap.ir.instructions_approximate import APPROXIMATE
from taskmap.ir.instructions_hopper import HOPPER
from taskmap.ir.instructions_memory import MEMORY
from taskmap.ir.instructions_mma import MMA
from taskmap.ir.instructions_sync import SYNC
from taskmap.ir.instructions_warp import WARP
from taskmap.ir.instructions_wmma import WMMA


def gpu_instructions() -> tuple[Instruction, ...]:
    """Every entry for a GPU."""
    return (*MMA, *WMMA, *MEMORY, *WARP, *APPROXIMATE, *SYNC, *HOPPER)
