"""The two epilogues of Fireiron's figure 2 (PACT 2020): results go from registers straight to global memory, where the
lanes of a warp write half of each sector; or by way of shared memory, so that they write whole rows. Padding keeps the
rows of the buffer in different banks."""

from collections.abc import Callable

from taskmap.decompose import BLOCK, REGISTER, SHARED, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16


def straight(store: Strategy) -> Strategy:
    """Every thread stores what it holds."""
    return store.done()


def by_way_of_shared_memory(store: Strategy) -> Strategy:
    """Threads exchange results, then store neighbouring chunks."""
    return store.move("src", SHARED).pad(8).done()


def without_padding(store: Strategy) -> Strategy:
    """The same exchange with bank conflicts."""
    return store.move("src", SHARED).done()


def epilogues(m: Dim, n: Dim, k: Dim, store: Callable[[Strategy], Strategy] = straight) -> Strategy:
    """c = a @ b in f16, with one of the epilogues above."""
    return (
        MatMul(m, n, k, a=f16, b=f16, c=f16)
        .tile(64, 64).to(BLOCK)
        .accumulate_in(REGISTER, store=store)
        .split(32)
        .move("a", SHARED).swizzle(2, 3, 3)
        .move("b", SHARED).swizzle(3, 3, 3)
        .tile(32, 32).to(WARP)
        .split(16).unroll()
        .move("a", REGISTER)
        .move("b", REGISTER)
        .tile(16, 8).done()
    )  # fmt: skip
