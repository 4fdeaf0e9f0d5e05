"""Schedules as values: a spec, decomposed until each piece is one instruction.

    from taskmap.decompose import BLOCK, MatMul, REGISTER, SHARED, THREAD, dim

    product = MatMul(dim("m"), dim("n"), dim("k")).tile(64, 64).to(BLOCK).accumulate_in(REGISTER)...done()
    taskmap.build(product.kernel(), "cuda")

`docs/design/schedules-as-values.md` describes the language; each primitive's docstring shows before and after.
"""

from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.specs import Init, MatMul, Move
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.expressions import Scope
from taskmap.ir.script.vocabulary import dim

__all__ = [
    "BLOCK", "CORE", "GLOBAL", "KERNEL", "LANES", "REGISTER", "SHARED", "THREAD", "WARP", "WARPGROUP", "Init", "Level",
    "MatMul", "Move", "Scope", "Strategy", "dim",
]  # fmt: skip

KERNEL, BLOCK, WARPGROUP, WARP, THREAD = Level.KERNEL, Level.BLOCK, Level.WARPGROUP, Level.WARP, Level.THREAD
CORE, LANES = Level.CORE, Level.LANES
GLOBAL, SHARED, REGISTER = Scope.GLOBAL, Scope.SHARED, Scope.REGISTER
