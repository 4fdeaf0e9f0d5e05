"""Products in f32 on CUDA cores: the `maxwell` strategy of Fireiron (PACT 2020, listing 3), which NVIDIA's kernels for
that GPU use. A block computes 128×128 elements, a warp 64×32, a thread 8×8 in four pieces, from shared memory."""

from collections.abc import Callable

from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARP, MatMul, Strategy
from taskmap.ir.nodes import Dim


def copy_a(copy: Strategy) -> Strategy:
    """A column of the tile for each warp; a thread takes every 32nd row."""
    return copy.tile(128, 1).to(WARP).tile(32, 1).tile(1, 1).to(THREAD).done()


def copy_b(copy: Strategy) -> Strategy:
    """Sixteen columns for each warp, in four rounds of two rows."""
    return copy.tile(8, 16).to(WARP).tile(2, 16).tile(1, 1).to(THREAD).done()


def swizzled(copy: Strategy) -> Strategy:
    """Odd rows change places with their neighbours 16 columns away: both rows that a warp writes have banks of their
    own."""
    return copy.swizzle(1, 4, 3)


def plain(copy: Strategy) -> Strategy:
    """Rows as they are: each write of a warp takes two turns."""
    return copy


def maxwell(
    m: Dim, n: Dim, k: Dim, batch: tuple[Dim, ...] = (), layout: Callable[[Strategy], Strategy] = swizzled
) -> Strategy:
    """c = a @ b in f32; ``layout`` refines the copy of b."""
    return (
        MatMul(m, n, k, batch=batch)
        .tile(128, 128).to(BLOCK).layout("column")
        .accumulate_in(REGISTER)
        .split(8)
        .move("a", SHARED, copy_a).storage("column")
        .move("b", SHARED, copy_b).apply(layout)
        .tile(64, 32).to(WARP)
        .tile((4, 32), (4, 16)).to(THREAD).layout("column")
        .split(1).unroll()
        .move("a", REGISTER, lambda copy: copy.tile(4, 1).done())
        .move("b", REGISTER, lambda copy: copy.tile(1, 4).done())
        .tile(1, 1).unroll().done()
    )  # fmt: skip
