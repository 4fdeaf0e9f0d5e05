"""Schedules as values: a spec, decomposed until each piece is one instruction.

    from taskmap.decompose import BLOCK, MatMul, REGISTER, SHARED, THREAD, dim

    product = MatMul(dim("m"), dim("n"), dim("k")).tile(64, 64).to(BLOCK).accumulate_in(REGISTER)...done()
    taskmap.build(product.kernel(), "cuda")

`docs/design/schedules-as-values.md` describes the language; each primitive's docstring shows before and after.
"""

from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.micro.kernel import MicroKernel, micro_kernel
from taskmap.ir.decompose.specs import Init, MatMul, Move
from taskmap.ir.decompose.stages import Compute, Reduce
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.expressions import Buffer, Scope
from taskmap.ir.script.vocabulary import dim
from taskmap.ir.task import Task, reduced, stage
from taskmap.ir.types import TensorType
from taskmap.kernels.micro_kernels import check_micro_kernel
from taskmap.kernels.parameter import param

__all__ = [
    "BLOCK", "CLUSTER", "CORE", "FRAGMENT", "GLOBAL", "KERNEL", "LANES", "LOCAL", "QUAD_PAIR", "REGISTER", "SHARED",
    "THREAD", "WARP", "WARPGROUP", "Compute", "Init", "Level", "MatMul", "MicroKernel", "Move", "Reduce", "Scope",
    "Strategy", "Task", "check_micro_kernel", "dim", "micro_kernel", "param", "reduced", "stage", "tensor",
]  # fmt: skip


def tensor(name: str, type: TensorType) -> Buffer:
    """A tensor that the stages of a task read: ``tensor("x", f32[m, n])``."""
    return Buffer(name, type.dtype, type.shape, strides=type.strides)


KERNEL = Level.KERNEL
"""All workers of a kernel."""
CLUSTER = Level.CLUSTER
"""Blocks of threads that run together, and write to each other's shared memory."""
BLOCK = Level.BLOCK
"""A block of threads of a GPU."""
WARPGROUP = Level.WARPGROUP
"""Four warps of a GPU: 128 threads."""
WARP = Level.WARP
"""A warp of a GPU: 32 threads."""
QUAD_PAIR = Level.QUAD_PAIR
"""Eight threads of a warp, which multiply 8×8×4 together: lanes 4q to 4q + 3, and 16 more."""
THREAD = Level.THREAD
"""A thread of a GPU."""
CORE = Level.CORE
"""A core of a CPU, which runs one thread."""
LANES = Level.LANES
"""The lanes of a vector register of a CPU."""
GLOBAL = Scope.GLOBAL
"""Memory that all workers of a kernel see."""
SHARED = Scope.SHARED
"""Shared memory of a block of threads."""
REGISTER = Scope.REGISTER
"""Registers, distributed among the workers that hold them."""
FRAGMENT = Scope.FRAGMENT
"""Registers of a warp whose owners are not documented: WMMA loads, multiplies and stores them."""
LOCAL = Scope.LOCAL
"""Memory of one core of a CPU."""
