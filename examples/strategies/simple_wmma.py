"""Products in f16 on tensor cores without shared memory: Fireiron's listing 2 (PACT 2020), the first kernel of NVIDIA's
sample cudaTensorCoreGemm. A warp computes 64×64 elements in 4×4 fragments."""

from taskmap.decompose import BLOCK, FRAGMENT, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def simple_wmma(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(64, 64).to(BLOCK)
        .accumulate_in(FRAGMENT)
        .split(16)
        .tile(64, 64).to(WARP)
        .move("a", FRAGMENT)
        .move("b", FRAGMENT)
        .tile(16, 16).done()
    )  # fmt: skip
