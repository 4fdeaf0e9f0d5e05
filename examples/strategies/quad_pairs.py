"""Products in f16 on tensor cores by quad-pairs: Fireiron's figure 8 (PACT 2020). A warp's tile of 16×16 consists of
four of 8×8, each in four pieces of 4×4; eight lanes multiply one, and the instruction all four."""

from taskmap.decompose import BLOCK, QUAD_PAIR, REGISTER, SHARED, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def quad_pairs(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(64, 64).to(BLOCK)
        .accumulate_in(REGISTER)
        .split(32)
        .move("a", SHARED).pad(8)
        .move("b", SHARED).pad(8)
        .tile(16, 32).to(WARP)
        .split(4).unroll()
        .move("a", REGISTER)
        .move("b", REGISTER)
        .tile(16, 16)
        .tile((4, 8), (4, 8)).to(QUAD_PAIR).layout("column").done()
    )  # fmt: skip
