"""Products in f16 on Hopper: one warpgroup fetches tiles by TMA into a ring of four stages, two others multiply
them from shared memory (CUTLASS, "warp-specialized"; FlashAttention-3, section 3.1)."""

from taskmap.decompose import BLOCK, REGISTER, SHARED, WARPGROUP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def hopper(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(128, 128).to(BLOCK).group(8).specialize(WARPGROUP, "fetch")
        .accumulate_in(REGISTER)
        .split(64)
        .move("a", SHARED).prefetch(4)
        .move("b", SHARED).prefetch(4)
        .tile(64, 128).to(WARPGROUP)
        .split(16).unroll()
        .done()
    )  # fmt: skip
