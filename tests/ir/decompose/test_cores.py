"""Loops of cores: tiles that cores share from some size on, and vectors of elements up to the problem's end."""

from __future__ import annotations

import numpy as np
import pytest

from examples.strategies.transpose import cpu_transpose, turned
from taskmap.decompose import CORE, LOCAL, Compute, Strategy, Task, dim, stage, tensor
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Compare, For, If, Kernel, LoopKind
from taskmap.ir.target import cpu_target
from taskmap.ir.types import f32
from taskmap.ir.verify.rules import verify
from taskmap.ir.visit import walk_stmts

M, N = dim("m"), dim("n")


def tiles() -> Strategy:
    return Compute(turned(M, N)).tile(8, 16).to(CORE).layout("column")


def in_vectors(tree: Strategy, lanes: int = 8) -> Strategy:
    return tree.move("x", LOCAL, lambda copy: copy.done().vectorize(lanes)).done().vectorize(lanes)


def loops(kernel: Kernel) -> list[For]:
    return [s for s in walk_stmts(kernel.body) if isinstance(s, For)]


def check(kernel: Kernel, shape: tuple[int, int]) -> None:
    """x transposed, before and after lowering."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    verify(kernel)
    for k in (kernel, lower(kernel, target=cpu_target("avx2", 2), verify=True)):
        sizes = dict(zip((M, N), shape, strict=True))
        found = interpret(k, {k.buffers[0]: x.ravel()}, {v: sizes[v] for v in k.dims})[k.outputs[0]]
        np.testing.assert_array_equal(found.reshape(shape[::-1]), x.T)


@pytest.mark.parametrize("shape", [(16, 8), (32, 16), (33, 17), (5, 3), (1, 40), (47, 1)])
def test_tiles_and_edges(shape: tuple[int, int]) -> None:
    for tree in (in_vectors(tiles()), in_vectors(tiles(), 1), cpu_transpose(M, N), tiles().done().vectorize(8)):
        check(tree.kernel(), shape)
        check(tree.kernel(m=shape[0], n=shape[1]), shape)


def test_loops_end_with_the_problem() -> None:
    """Nothing is tested inside the loops, and there is one copy of them."""
    kernel = in_vectors(tiles()).kernel()
    assert not any(isinstance(s, If) for s in walk_stmts(kernel.body))
    assert sum(s.kind is LoopKind.VECTOR for s in loops(kernel)) == 2


def test_leaves_that_are_no_loops_keep_their_tests() -> None:
    """A copy that is left to lowering moves whole tiles: edges have a copy of the tile's statements, with tests."""
    tree = tiles().move("x", LOCAL).done().vectorize(8)
    for shape in ((32, 16), (33, 17), (5, 3)):
        check(tree.kernel(), shape)
    assert any(isinstance(s, If) for s in walk_stmts(tree.kernel().body))
    inner = tiles().tile(4, 16).done().vectorize(8)
    for shape in ((32, 16), (33, 17), (5, 3)):
        check(inner.kernel(), shape)


def test_a_stage_computed_where_it_is_used() -> None:
    x = tensor("x", f32[M, N])
    twice = stage("twice", (M, N), lambda i, j: x[i, j] * 2)
    spec = Compute(Task.of("more", twice, stage("y", (N, M), lambda j, i: twice[i, j])))
    tree = spec.tile(8, 16).to(CORE).move("twice", LOCAL, lambda part: part.done().vectorize(8)).done().vectorize(8)
    given = np.random.default_rng(0).standard_normal((33, 17)).astype(np.float32)
    kernel = tree.kernel()
    found = interpret(kernel, {kernel.buffers[0]: given.ravel()}, {M: 33, N: 17})[kernel.outputs[0]]
    np.testing.assert_array_equal(found.reshape(17, 33), 2 * given.T)


def test_cores_share_what_is_worth_it() -> None:
    least = 1000
    for m, kind in ((31, LoopKind.SERIAL), (32, LoopKind.PARALLEL)):
        outer, *_ = loops(in_vectors(tiles().parallel(least)).kernel(m=m, n=32))
        assert (outer.kind, outer.shared) == (kind, None)
    outer, *_ = loops(in_vectors(tiles().parallel(least)).kernel())
    assert outer.kind is LoopKind.PARALLEL
    assert isinstance(outer.shared, Compare)
    outer, *_ = loops(in_vectors(tiles()).kernel())
    assert (outer.kind, outer.shared) == (LoopKind.PARALLEL, None)


def test_enough_tasks() -> None:
    """The slowest axes are one shared loop; a core has loops over the others."""
    sizes = {"m": 128, "n": 64}  # 8 by 8 tiles
    for tasks, counts in ((None, [64]), (8, [8, 8]), (9, [64])):
        made = in_vectors(tiles().parallel(0, tasks)).kernel(**sizes)
        found = [s for s in loops(made) if s.var.name in ("task", "tile_j")]
        assert [str(getattr(s.extent, "value", s.extent)) for s in found] == list(map(str, counts))
        assert [s.kind for s in found] == [LoopKind.PARALLEL, LoopKind.SERIAL][: len(found)]
        check(made, (128, 64))


def test_a_tree_prints_its_loops() -> None:
    text = str(in_vectors(tiles().parallel(1000, tasks=16)))
    assert ".parallel(1000, tasks=16)" in text
    assert text.count(".vectorize(8)") == 2
