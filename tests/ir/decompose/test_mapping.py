"""The task mapping of a tree: a partition for every tree, and the owners that the templates use."""

from __future__ import annotations

from math import gcd
from random import Random

import pytest

from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARP, MatMul, Strategy, dim
from taskmap.ir import repeat, spatial
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Dim, Move
from taskmap.ir.types import DType, TensorType, f16, f32
from taskmap.ir.visit import walk_stmts
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import find_product
from taskmap.schedules.cuda.matmul.strategy import strategy_of
from tests.schedules.graph_tasks import fused, matrix_product

N = dim("n")
LANES = [(32, 1), (16, 2), (8, 4), (4, 8), (2, 16), (1, 32)]


def axis(rng: Random, inner: int, lanes: int) -> tuple[int, int | tuple[int, int]]:
    """The extent of a warp's tile along an axis, and the size of a thread's: pieces of ``inner``, maybe repeated."""
    again = rng.choice([1, 1, 2, 3])
    return inner * lanes * again, inner if again == 1 else (inner, inner * lanes)


def random_tree(rng: Random) -> Strategy:
    """A product whose accumulators are tiled in order, given to warps and threads, in random order of the axes."""
    lanes = rng.choice(LANES)
    thread = rng.choice([1, 2, 4]), rng.choice([1, 2])
    (wm, tm), (wn, tn) = (axis(rng, inner, n) for inner, n in zip(thread, lanes, strict=True))
    warps, rounds = (rng.choice([1, 2]), rng.choice([1, 2])), (rng.choice([1, 1, 2]), rng.choice([1, 1, 3]))
    bm, bn = (w * n * r for w, n, r in zip((wm, wn), warps, rounds, strict=True))
    tree = MatMul(bm * 2, bn, 8).tile(bm, bn).to(BLOCK).accumulate_in(REGISTER).split(2)
    if max(rounds) > 1:
        tree = tree.tile(wm * warps[0], wn * warps[1]).layout(rng.choice(["row", "column"]))
    tree = tree.tile(wm, wn).to(WARP).layout(rng.choice(["row", "column"]))
    tree = tree.tile(tm, tn).to(THREAD).layout(rng.choice(["row", "column"])).split(1)
    if rng.random() < 0.5:
        tree = tree.tile(*thread)
    return tree.tile(1, 1).layout(rng.choice(["row", "column"])).done()


def done_once(mapping: TaskMapping) -> bool:
    """Every task is done exactly once, found by listing all of them."""
    tasks = [task for worker in range(mapping.num_workers) for task in mapping(worker)]
    total = mapping.task_shape[0] * mapping.task_shape[1]
    return len(tasks) == len(set(tasks)) == total


@pytest.mark.parametrize("part", range(10))
def test_random_trees_are_partitions(part: int) -> None:
    rng = Random(part)
    for _ in range(50):
        tree = random_tree(rng)
        mapping = tree.mapping("c")
        assert mapping.is_partition
        assert done_once(mapping), str(tree)


def test_the_check_finds_a_task_done_twice() -> None:
    twice = TaskMapping((4, 2), (spatial(2, 2).parts[0],), "half")
    assert not done_once(twice)


@pytest.mark.parametrize(
    "config",
    [
        MatmulConfig("simt", 64, 64, 8, 32, 32),
        MatmulConfig("simt", 128, 128, 8, 32, 64),
        MatmulConfig("simt", 128, 64, 16, 64, 32),
        MatmulConfig("simt", 32, 32, 16, 16, 16),
    ],
    ids=str,
)
def test_the_owners_of_the_simt_template(config: MatmulConfig) -> None:
    """Warps, pieces of each thread, and the 4 × 8 lanes that hold a piece."""
    p = find_product(fused([matrix_product("plain", 256, 256, 64, f32)]))
    assert p is not None
    tree = strategy_of(p, config)
    (tm, tn), piece = config.thread_tile, repeat(*(gcd(n, 4) for n in config.thread_tile))
    pieces = repeat(tm // piece.task_shape[0], tn // piece.task_shape[1])
    assert tree.mapping("c") == spatial(*config.warps) * pieces * spatial(4, 8) * piece


@pytest.mark.parametrize("sizes", [(64, 64, 32, 32), (128, 128, 64, 32), (32, 32, 16, 32)])
def test_the_owners_of_the_mma_template(sizes: tuple[int, int, int, int]) -> None:
    bm, bn, wm, wn = sizes
    config = MatmulConfig("mma_m16n8k16_f16_f32", bm, bn, 32, wm, wn)
    p = find_product(fused([matrix_product("plain", bm, bn, 32, f16)]))
    assert p is not None
    tree = strategy_of(p, config)
    found = instruction_named(config.multiplier)
    assert found.owner_a is not None
    assert found.owner_c is not None
    assert tree.mapping("c") == spatial(bm // wm, bn // wn) * repeat(wm // 16, wn // 8) * found.owner_c
    assert tree.mapping("a") == repeat(wm // 16, 1) * found.owner_a


@pytest.mark.parametrize(
    ("b", "n", "mapping"),
    [
        (f32, 64, spatial(8, 8) * repeat(1, 4)),
        (f32, 66, repeat(2, 1) * spatial(4, 16) * repeat(1, 2)),
        (f32, 65, repeat(4, 1) * spatial(2, 32)),
        (f32, N, repeat(4, 1) * spatial(2, 32)),
        (f16, 64, spatial(8, 8) * repeat(1, 4)),
        (f32[16, 64].strided(1, 16), 64, repeat(1, 4, order=(1, 0)) * spatial(8, 8, order=(1, 0))),
        (f32[16, N].strided(N, 1), N, repeat(4, 1) * spatial(2, 32)),
        (f32[16, 64].strided(2, 32), 64, repeat(4, 1) * spatial(2, 32)),
    ],
    ids=str,
)
def test_copies_follow_memory(b: DType | TensorType, n: Dim, mapping: TaskMapping) -> None:
    """Neighbouring threads read neighbours in memory, in chunks that are aligned."""
    block = MatMul(32, n, 16, b=b).tile(32, 32).to(BLOCK).accumulate_in(REGISTER).split(8).move("b", SHARED)
    tree = block.tile(4, 4).to(THREAD).split(1).tile(1, 1).done()
    assert tree.mapping("b") == mapping
    (move,) = (s for s in walk_stmts(tree.kernel().body) if isinstance(s, Move) and s.mapping is not None)
    assert move.mapping is not None
    assert move.mapping.num_workers == mapping.num_workers == 64


def test_the_mapping_of_a_copy() -> None:
    tree = (
        MatMul(64, 64, 8).tile(64, 64).to(BLOCK).accumulate_in(REGISTER).split(8)
        .move("a", SHARED, lambda copy: copy.tile(32, 8).tile(1, 1).to(THREAD).done())
        .move("b", SHARED, by=repeat(2, 1) * spatial(4, 64))
        .tile(4, 4).to(THREAD).split(1).tile(1, 1).done()
    )  # fmt: skip
    assert tree.mapping("a") == repeat(2, 1) * spatial(32, 8)
    assert tree.mapping("b") == repeat(2, 1) * spatial(4, 64)
    with pytest.raises(ScheduleError, match="no operand 'x'"):
        tree.mapping("x")
