"""Random trees of products, run at sizes that are no multiples: values are exact, and there is no race in any order."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import taskmap
from taskmap.decompose import BLOCK, CLUSTER, CORE, REGISTER, SHARED, THREAD, WARP, MatMul, Strategy, dim
from taskmap.ir.lower.gpu import on_multiprocessors
from taskmap.ir.types import f16, f32, f64, i32

M, N, K = dim("m"), dim("n"), dim("k")
LANES_OF_A_WARP = [(32, 1), (16, 2), (8, 4), (4, 8), (2, 16), (1, 32)]
NUMPY = {"f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32"}


def chance(rng: Random, odds: float) -> bool:
    return rng.random() < odds


def stored(rng: Random) -> Any:
    """Straight to global memory, or by way of shared memory."""
    pad = rng.choice([1, 4])
    by_way = [lambda copy: copy.move("src", SHARED).done(), lambda copy: copy.move("src", SHARED).pad(pad).done()]
    return rng.choice([None, *by_way])


def copied(rng: Random, tree: Strategy, name: str, stages: int, *, asynchronous: bool) -> Strategy:
    """A copy to shared memory, refined at random."""
    tree = tree.move(name, SHARED)
    tree = tree.storage("column") if chance(rng, 0.4) else tree
    tree = tree.pad(rng.choice([1, 4, 8])) if chance(rng, 0.4) else tree
    tree = tree.prefetch(stages) if stages > 1 else tree
    return tree.asynchronous() if stages > 1 and asynchronous else tree


def of_threads(rng: Random) -> Strategy:
    """A product by multiply-adds of threads, with strided tiles, rounds, orders and stages."""
    lanes, own = rng.choice(LANES_OF_A_WARP), (rng.choice([1, 2, 4]), rng.choice([1, 2, 4]))
    again = rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    warp = [inner * n * times for inner, n, times in zip(own, lanes, again, strict=True)]
    tiles = [i if times == 1 else (i, i * n) for i, n, times in zip(own, lanes, again, strict=True)]
    warps, rounds = (rng.choice([1, 2]), rng.choice([1, 2])), (rng.choice([1, 1, 2]), rng.choice([1, 1, 2]))
    inner = [w * n for w, n in zip(warp, warps, strict=True)]
    dtype = rng.choice([f32, f32, f64, i32, f16])
    c = f32 if dtype == f16 else dtype
    tree = MatMul(M, N, K, a=dtype, b=dtype, c=c, batch=rng.choice([(), (), (dim("z"),)]))
    block = tree.tile(*(n * r for n, r in zip(inner, rounds, strict=True))).to(BLOCK)
    block = block.group(rng.choice([1, 2, 3])) if chance(rng, 0.4) else block.layout(rng.choice(["row", "column"]))
    depth, stages, asynchronous = rng.choice([1, 2, 4, 8, 16]), rng.choice([1, 1, 2, 3]), chance(rng, 0.5)
    part = block.accumulate_in(REGISTER, store=stored(rng)).split(depth)
    for name in rng.sample("ab", 2):
        if stages > 1 or chance(rng, 0.8):
            part = copied(rng, part, name, stages, asynchronous=asynchronous)
    part = part.tile(*inner) if max(rounds) > 1 else part
    part = part.split(2) if depth > 2 and chance(rng, 0.3) else part
    part = part.tile(*warp).to(WARP).layout(rng.choice(["row", "column"]))
    part = part.tile(*tiles).to(THREAD).layout(rng.choice(["row", "column"])).split(1)
    for name in "ab":
        part = part.move(name, REGISTER) if chance(rng, 0.6) else part
    part = part.tile(*own) if chance(rng, 0.4) else part
    return part.tile(1, 1).done()


def of_tensor_cores(rng: Random) -> Strategy:
    """A product by mma instructions."""
    warp, warps = (rng.choice([16, 32]), rng.choice([8, 16, 32])), (rng.choice([1, 2]), rng.choice([1, 2]))
    tree = MatMul(M, N, K, a=f16, b=f16, batch=rng.choice([(), (dim("z"),)]))
    block = tree.tile(*(w * n for w, n in zip(warp, warps, strict=True))).to(BLOCK)
    part = block.accumulate_in(REGISTER, store=stored(rng)).split(rng.choice([16, 32, 64]))
    stages, asynchronous = rng.choice([1, 2, 3]), chance(rng, 0.5)
    for name in "ab":
        part = copied(rng, part, name, stages, asynchronous=asynchronous)
    part = part.tile(*warp).to(WARP).split(16).move("a", REGISTER).move("b", REGISTER)
    return part.tile(16, 8).done()


def of_shared_work(rng: Random) -> Strategy:
    """A product by threads, in which blocks or warps share sums, blocks take turns, or clusters divide tiles."""
    own, lanes = (rng.choice([1, 2, 4]), rng.choice([1, 2, 4])), rng.choice(LANES_OF_A_WARP)
    warp = [inner * n for inner, n in zip(own, lanes, strict=True)]
    inner = [w * rng.choice([1, 2]) for w in warp]
    way, dtype = rng.choice(["blocks", "warps", "both", "turns", "turns of warps", "clusters"]), rng.choice([f32, i32])
    tree = MatMul(M, N, K, a=dtype, b=dtype, c=dtype, batch=rng.choice([(), (dim("z"),)]))
    if way == "clusters":
        cluster = tree.tile(inner[0] * 2, inner[1]).to(CLUSTER)
        block = (cluster.persistent() if chance(rng, 0.5) else cluster).tile(*inner).to(BLOCK)
    else:
        block = tree.tile(*inner).to(BLOCK)
        block = block.group(rng.choice([1, 2, 3])) if chance(rng, 0.4) else block.layout(rng.choice(["row", "column"]))
    block = block.split_sum(rng.choice([2, 3, 5])) if way in ("blocks", "both") else block
    block = block.persistent() if way.startswith("turns") else block
    depth, stages, asynchronous = rng.choice([4, 8, 16]), rng.choice([1, 1, 2, 3]), chance(rng, 0.5)
    part = block.accumulate_in(REGISTER, store=stored(rng)).split(depth)
    for name in rng.sample("ab", 2):
        part = copied(rng, part, name, stages, asynchronous=asynchronous)
    part = part.tile(*warp).to(WARP)
    part = part.split_sum(rng.choice([2, 4])) if way in ("warps", "both", "turns of warps") else part
    return part.tile(*own).to(THREAD).split(1).tile(1, 1).done()


def of_cores(rng: Random) -> Strategy:
    """A product on a CPU."""
    rows, columns = rng.choice([1, 3, 6]), rng.choice([4, 8, 32, 20])
    dtype = rng.choice([f32, f64, i32])
    tree = MatMul(M, N, K, a=dtype, b=dtype, c=dtype, batch=rng.choice([(), (dim("z"),)]))
    outer = tree.tile(rows * 4, columns * 2) if chance(rng, 0.3) and len(tree.tiled) == 2 else tree
    part = outer.tile(rows, columns).to(CORE).layout(rng.choice(["row", "column"])).accumulate_in(REGISTER)
    part = part.split(rng.choice([1, 1, 4]))
    for name in "ab":
        part = part.move(name, REGISTER) if chance(rng, 0.4) else part
    return part.tile(1, columns).unroll().done() if chance(rng, 0.5) else part.done()


def arrays_of(tree: Strategy, rng: Random) -> tuple[dict[str, int], list[Any]]:
    """Sizes, and operands of small integers: sums are exact in every type."""
    sizes = {name: rng.choice([1, 7, 16, 33, 64, 70]) for name in "mnk"}
    a, b, c = (np.dtype(NUMPY[o.dtype.name]) for o in tree.root.operands)
    batch = (2,) if len(tree.root.operands[0].axes) == 3 else ()
    m, n, k = sizes.values()
    made = np.random.default_rng(rng.randrange(1 << 30))
    x, y = made.integers(-4, 5, (*batch, m, k)).astype(a), made.integers(-4, 5, (*batch, k, n)).astype(b)
    return sizes, [x, y, np.full((*batch, m, n), 99, c)]


def check(arrays: list[Any], tree: Strategy) -> None:
    a, b, c = arrays
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64), str(tree))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 60))])
def test_on_a_gpu(seed: int) -> None:
    rng = Random(seed)
    tree = (of_tensor_cores if seed % 3 == 2 else of_threads)(rng)
    sizes, arrays = arrays_of(tree, rng)
    kernel = tree.kernel(**(sizes if seed % 2 else {}))
    taskmap.simulate(kernel, *arrays, seeds=(seed,), seconds=600.0).check()
    check(arrays, tree)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 60))])
def test_shared_work(seed: int) -> None:
    rng = Random(seed)
    tree = of_shared_work(rng)
    sizes, arrays = arrays_of(tree, rng)
    batch = {"z": 2} if len(arrays[0].shape) == 3 else {}
    kernel = on_multiprocessors(tree.kernel(**sizes, **batch), 3)
    taskmap.simulate(kernel, *arrays, seeds=(seed,), seconds=600.0).check()
    check(arrays, tree)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 60))])
def test_on_a_cpu(seed: int) -> None:
    rng = Random(seed)
    tree = of_cores(rng)
    sizes, arrays = arrays_of(tree, rng)
    taskmap.build(tree.kernel(**(sizes if seed % 2 else {})))(*arrays)
    check(arrays, tree)
