"""Products in f32 on CUDA cores with two buffers: while one tile is multiplied, the next one is on its way into
registers (Hidet, Ding et al., ASPLOS 2023, section 5.1). One barrier in each step is enough."""

from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, MatMul, Strategy
from taskmap.ir import repeat, spatial
from taskmap.ir.nodes import Dim


def double_buffering(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b in f32."""
    return (
        MatMul(m, n, k, batch=batch)
        .tile(64, 64).to(BLOCK).group(8)
        .accumulate_in(REGISTER)
        .split(8)
        .move("a", SHARED, by=repeat(2, 1) * spatial(32, 8)).storage("column").pad(8).prefetch(2)
        .move("b", SHARED, by=repeat(2, 1) * spatial(4, 64)).prefetch(2)
        .tile(4, 4).to(THREAD)
        .split(1).unroll()
        .move("a", REGISTER)
        .move("b", REGISTER)
        .tile(1, 1).done()
    )  # fmt: skip
