"""Products in f16 on tensor cores, with small tiles: on small matrices more blocks run at once (Fireiron, PACT 2020,
section 5, hypothesis D). Two warps compute 32×32 elements from shared memory, whose addresses are swizzled."""

from taskmap.decompose import BLOCK, REGISTER, SHARED, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def mma_small(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(32, 32).to(BLOCK)
        .accumulate_in(REGISTER)
        .split(64)
        .move("a", SHARED).swizzle(3, 3, 3)
        .move("b", SHARED).swizzle(2, 3, 3)
        .tile(16, 32).to(WARP)
        .split(16).unroll()
        .move("a", REGISTER)
        .move("b", REGISTER)
        .tile(16, 8).done()
    )  # fmt: skip
