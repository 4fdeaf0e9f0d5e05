"""Products in f16 on tensor cores by way of shared memory: Fireiron's listing 3 (PACT 2020), the second kernel of
NVIDIA's sample cudaTensorCoreGemm. Eight warps compute 64×32 elements each, and write the results by rows."""

from taskmap.decompose import BLOCK, FRAGMENT, SHARED, THREAD, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def rows(copy: Strategy) -> Strategy:
    """Sixteen rows for each warp, two at a time."""
    return copy.tile(16, 128).to(WARP).tile(2, 128).unroll().tile(1, 8).to(THREAD).done()


def from_fragments(copy: Strategy) -> Strategy:
    """Each warp writes its own fragments to shared memory."""
    return copy.tile(64, 32).to(WARP).tile(16, 16).unroll().done()


def epilogue(store: Strategy) -> Strategy:
    """Results reach global memory as whole rows."""
    store = store.move("src", SHARED, from_fragments).pad(8)
    return store.tile(16, 128).to(WARP).tile(1, 128).unroll().tile(1, 4).to(THREAD).done()


def wmma_sample(m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = ()) -> Strategy:
    """c = a @ b, of f16 summed in f32."""
    return (
        MatMul(m, n, k, a=f16, b=f16, batch=batch)
        .tile(128, 128).to(BLOCK)
        .accumulate_in(FRAGMENT, store=epilogue)
        .split(128)
        .move("a", SHARED, rows).pad(8)
        .move("b", SHARED, rows).pad(8)
        .tile(64, 32).to(WARP)
        .split(16).unroll()
        .move("a", FRAGMENT)
        .move("b", FRAGMENT)
        .tile(16, 16).unroll().done()
    )  # fmt: skip
