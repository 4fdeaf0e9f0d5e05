"""Products in f16 on tensor cores with large tiles: each element read from global memory serves 128 products (Fireiron,
PACT 2020, section 5). Eight warps compute 64×32 elements each."""

from taskmap.decompose import BLOCK, REGISTER, SHARED, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def mma_large(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(128, 128).to(BLOCK).group(8)
        .accumulate_in(REGISTER)
        .split(32)
        .move("a", SHARED).swizzle(2, 3, 3)
        .move("b", SHARED).swizzle(3, 3, 4)
        .tile(64, 32).to(WARP)
        .split(16).unroll()
        .move("a", REGISTER)
        .move("b", REGISTER)
        .tile(16, 8).done()
    )  # fmt: skip
