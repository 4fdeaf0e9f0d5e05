"""Products in f16 on tensor cores through a ring of three stages: two copies are on their way, asynchronously, while a
third is used (CUTLASS; docs/write-a-cuda-kernel.md, section 4)."""

from taskmap.decompose import BLOCK, REGISTER, SHARED, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def async_ring(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(64, 64).to(BLOCK).group(8)
        .accumulate_in(REGISTER)
        .split(32)
        .move("a", SHARED).swizzle(2, 3, 3).prefetch(3).asynchronous()
        .move("b", SHARED).swizzle(3, 3, 3).prefetch(3).asynchronous()
        .tile(32, 32).to(WARP)
        .split(16).unroll()
        .move("a", REGISTER)
        .move("b", REGISTER)
        .tile(16, 8).done()
    )  # fmt: skip
