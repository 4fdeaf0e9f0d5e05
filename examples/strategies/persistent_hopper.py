"""Products in f16 on Hopper by persistent clusters: pairs of blocks, as many as the multiprocessors hold, take tiles in
turns. Both use the same columns of b: each fetches half of the rows, and TMA sends them to both (CUTLASS, "persistent",
"multicast")."""

from taskmap.decompose import BLOCK, CLUSTER, REGISTER, SHARED, WARPGROUP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def persistent_hopper(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(256, 128).to(CLUSTER).group(8).persistent()
        .tile(128, 128).to(BLOCK).specialize(WARPGROUP, "fetch")
        .accumulate_in(REGISTER)
        .split(64)
        .move("a", SHARED).prefetch(4)
        .move("b", SHARED).prefetch(4).multicast(CLUSTER)
        .tile(64, 128).to(WARPGROUP)
        .split(16).unroll()
        .done()
    )  # fmt: skip
