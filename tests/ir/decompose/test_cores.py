"""Loops of cores: tiles that cores share from some size on, and vectors of elements up to the problem's end."""

from __future__ import annotations

import numpy as np
import pytest

from examples.strategies.transpose import cpu_transpose, turned
from taskmap.backend.cpu.codegen import generate
from taskmap.decompose import CORE, LOCAL, REGISTER, Compute, MatMul, Strategy, Task, dim, stage, tensor
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Compare, Dim, For, If, Kernel, LoopKind
from taskmap.ir.target import cpu_target
from taskmap.ir.types import f32
from taskmap.ir.verify.rules import verify
from taskmap.ir.visit import walk_stmts

M, N, K = dim("m"), dim("n"), dim("k")


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


def tile_of_product(k: Dim | tuple[Dim, ...] = K, rows: int = 3, columns: int = 20) -> Strategy:
    return MatMul(M, N, k).tile(rows, columns).to(CORE)


def one_by_one(tree: Strategy, lanes: int = 8) -> Strategy:
    """Both operands in registers: of a, single elements; of b, vectors."""
    tree = tree.move("b", REGISTER, lambda copy: copy.done().vectorize(lanes))
    return tree.move("a", REGISTER, lambda copy: copy.done().vectorize(1)).done()


def check_product(tree: Strategy, m: int, n: int, *k: int) -> None:
    """a @ b of small integers, which is exact, before and after lowering."""
    rng = np.random.default_rng(m + n)
    a, b = rng.integers(-8, 8, (m, *k)).astype(np.float32), rng.integers(-8, 8, (*k, n)).astype(np.float32)
    kernel = tree.kernel()
    verify(kernel)
    sizes = {M: m, N: n, K: k[0]}
    for made in (kernel, lower(kernel, target=cpu_target("avx2", 2), verify=True)):
        given = {made.buffers[0]: a.ravel(), made.buffers[1]: b.ravel()}
        found = interpret(made, given, {v: sizes[v] for v in made.dims})[made.outputs[0]]
        np.testing.assert_array_equal(found.reshape(m, n), a.reshape(m, -1) @ b.reshape(-1, n))


SHAPES = [(3, 20, 4), (6, 40, 13), (7, 33, 1), (2, 5, 21)]


@pytest.mark.parametrize("shape", SHAPES)
def test_operands_in_registers_by_vectors_and_by_elements(shape: tuple[int, int, int]) -> None:
    check_product(one_by_one(tile_of_product().accumulate_in(REGISTER).split(1)), *shape)


@pytest.mark.parametrize("how", ["resume", "add"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_continue_in_parts(shape: tuple[int, int, int], how: str) -> None:
    """Parts of four terms, of which the last one is shorter; tiles of a block, whose sums stay in memory meanwhile."""
    tree = tile_of_product().accumulate_in(LOCAL).split(4).accumulate_in(REGISTER, how=how)
    check_product(one_by_one(tree.split(1)), *shape)
    blocked = tile_of_product(rows=6).accumulate_in(LOCAL).split(4).tile(3, 20).accumulate_in(REGISTER, how=how)
    check_product(one_by_one(blocked.split(1)), *shape)
    check_product(blocked.split(1).done(), *shape)


def test_sums_that_are_added_are_short() -> None:
    """2 ** 24 + 1 + ... + 1 in f32: ones that are added one after another are lost, four at a time are not."""
    tree = tile_of_product().accumulate_in(LOCAL).split(4)
    results = []
    for how in ("resume", "add"):
        kernel = one_by_one(tree.accumulate_in(REGISTER, how=how).split(1)).kernel(m=1, n=1, k=8)
        a = np.ones(8, np.float32)
        a[:4] = 2**24, 0, 0, 0
        found = interpret(kernel, {kernel.buffers[0]: a, kernel.buffers[1]: np.ones(8, np.float32)}, {})
        results.append(found[kernel.outputs[0]].item() - 2**24)
    assert results == [0, 4]


def test_a_part_that_is_moved_is_whole() -> None:
    """A copy of a part of the sum has all its terms, 0 beyond the end: no loop ends earlier."""
    tree = tile_of_product().accumulate_in(REGISTER).split(4).move("b", LOCAL).split(1).done()
    for shape in SHAPES:
        check_product(tree, *shape)


@pytest.mark.parametrize("k", [(5, 3), (1, 9), (4, 1)])
def test_sums_along_two_axes(k: tuple[int, int]) -> None:
    tree = tile_of_product((K, k[1])).accumulate_in(REGISTER).split(1)
    check_product(one_by_one(tree if k[1] == 1 else tree.split(1).unroll()), 7, 33, *k)
    a, b, c = (np.ones(shape, np.float32) for shape in ((2, *k), (*k, 3), (2, 3)))
    assert (MatMul(2, 3, k).meaning(a=a, b=b, c=c) == k[0] * k[1] + 1).all()


def test_the_c_compiler_unrolls_the_loops_of_a_core() -> None:
    tree = tile_of_product((K, 3)).accumulate_in(REGISTER).split(1).split(1).unroll()
    inner = [s for s in loops(one_by_one(tree).kernel()) if s.unroll]
    assert {(s.kind, s.unroll) for s in inner} == {(LoopKind.SERIAL, 3)}


def test_a_register_tile_becomes_assembly() -> None:
    """The strategy of a product has the loop of the template: one statement for the C compiler."""
    target = cpu_target("avx512", 2)
    tile = MatMul(12, 128, 96).tile(6, 64).to(CORE).accumulate_in(REGISTER).split(1)
    kernel = lower(one_by_one(tile, 16).kernel(), target=target)
    assert generate(kernel, target.vector_bytes, target.features).text.count("asm") == 1
