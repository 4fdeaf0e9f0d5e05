"""Panels of B that are not packed: many tiles of rows read a copy, which each element of B enters once."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import constant_value, index
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Allocate, Body, Buffer, Expr, For, If, Kernel, Let, Load, Store, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.types import DType, bf16, f32
from taskmap.ir.visit import substitute, walk_exprs, walk_stmts
from taskmap.schedules import schedule
from taskmap.schedules.common.matmul_form import anchor_of
from taskmap.schedules.cpu.matmul.config import MatmulConfig, copies_panels, default
from taskmap.schedules.cpu.matmul.microkernel import Tile
from taskmap.schedules.cpu.matmul.problem import MatmulProblem
from taskmap.schedules.cpu.matmul.template import sizes_of
from tests.schedules.interpreting import interpreted

SMALL = cpu_target("avx2", 1, l1=1 << 10, l2=64 << 10)


def product(m: int, n: int, k: int, b: str = "n", dtype: DType = f32, free: tuple[str, ...] = ()) -> MatmulProblem:
    return MatmulProblem(1, m, n, k, (dtype, dtype, dtype), b=b, free=free)


def copies(kernel: Kernel) -> bool:
    return any(isinstance(s, Allocate) and s.buffer.name == "columns" for s in walk_stmts(kernel.body))


def elements_read(body: Body, of: Buffer, at: dict[Var, Expr]) -> int:
    """The number of elements of ``of`` that ``body`` reads, each as often as it is read; ``at``: values of
    variables."""

    def value(e: Expr) -> int | None:
        known = constant_value(Simplifier()(substitute(e, at)))
        return None if known is None else int(known)

    def in_expressions(*found: Expr) -> int:
        return sum(isinstance(e, Load) and e.buffer is of for x in found for e in walk_exprs(x))

    if not any(isinstance(e, Load) and e.buffer is of for s in walk_stmts(body) for e in walk_exprs(s)):
        return 0
    at, count = dict(at), 0
    for s in body:
        if isinstance(s, For):
            trips = value(s.extent)
            assert trips is not None
            count += sum(elements_read(s.body, of, {**at, s.var: index(i)}) for i in range(trips))
        elif isinstance(s, If):
            count += elements_read(s.then if value(s.cond) else s.orelse, of, at)
        elif isinstance(s, Let):
            count += in_expressions(s.value)
            known = value(s.value)
            at |= {} if known is None else {s.var: index(known)}
        elif isinstance(s, Store):
            count += in_expressions(s.value)
    return count


@pytest.mark.parametrize("b", ["n", "k"])
@pytest.mark.parametrize("sizes", [(64, 72, 20), (64, 64, 24), (60, 80, 192), (61, 48, 30)])
def test_each_element_of_b_is_read_once(sizes: tuple[int, int, int], b: str) -> None:
    m, n, k = sizes
    kernel = schedule(product(m, n, k, b).task(), SMALL)
    assert copies(kernel)
    assert elements_read(kernel.body, kernel.buffers[1], {}) == n * k


def test_rows_of_one_block_are_cut_along_the_sum() -> None:
    problem = product(60, 72, 288)
    config = problem.default(SMALL)
    assert config == default(problem.sizes, SMALL)
    assert (config.rows, config.k_blocks) == (60, 3)  # 60 rows of 136 terms take half of the second-level cache
    assert "k_blocks=1)" in schedule(product(40, 72, 16).task(), SMALL).note


@pytest.mark.parametrize("order", ["n", "k"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("sizes", [(33, 53, 11), (41, 64, 13)])
def test_products_of_copies_are_right(sizes: tuple[int, int, int], parts: int, order: str) -> None:
    m, n, k = sizes
    problem, chance = product(m, n, k, order), np.random.default_rng(0)
    kernel = schedule(problem.task(), SMALL, MatmulConfig(Tile(4, 3), -(-m // 4) * 4, parts))
    assert copies(kernel)
    a, b = (chance.standard_normal(s).astype(np.float32) for s in ((1, m, k), (1, k, n)))
    (found,) = interpreted(kernel, kernel, [a, b], {})
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("sizes", "squares"), [
    ((33, 50, 34), 2),  # a panel of 32 columns, and 16 of the other
    ((20, 33, 71), 1),
    ((28, 48, 13), 0),
])  # fmt: skip
def test_squares_of_columns_that_lie_apart_are_transposed(
    sizes: tuple[int, int, int], squares: int, parts: int
) -> None:
    """Squares of 16 terms and columns, and the rest of both one by one."""
    m, n, k = sizes
    target, chance = cpu_target("avx512", 1), np.random.default_rng(0)
    kernel = schedule(product(m, n, k, "k").task(), target, MatmulConfig(Tile(6, 2), -(-m // 6) * 6, parts))
    assert copies(kernel)
    lowered = lower(kernel, target=target, verify=True)
    assert generate(lowered, target.vector_bytes).text.count("tm_transpose_u32x16(") == squares
    a, b = (chance.standard_normal(s).astype(np.float32) for s in ((1, m, k), (1, k, n)))
    (found,) = interpreted(kernel, lowered, [a, b], {})
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def test_panels_that_are_read_in_place_as_fast_are_not_copied() -> None:
    def copied(problem: MatmulProblem, target: CpuTarget = SMALL) -> bool:
        return copies(schedule(problem.task(), target))

    assert copied(product(64, 72, 12))
    assert not copied(product(16, 72, 12))  # four tiles of rows
    assert not copied(product(64, 72, 6))  # in the first-level cache
    assert not copied(product(64, 24, 12))  # one panel: its rows are neighbours
    assert not copied(product(64, 72, 12, "packed24"))
    assert not copied(product(64, 72, 12, dtype=bf16))
    assert not copied(product(64, 72, 12, free=("k",)))
    assert not copied(product(64, 72, 12, free=("m",)))
    assert not copied(product(128, 96, 12), cpu_target("avx512", 1, l1=1 << 10, l2=32 << 10))


def test_columns_that_lie_apart_are_copied_for_more_than_one_tile() -> None:
    assert copies(schedule(product(64, 24, 6, "k").task(), SMALL))  # one panel, in the first-level cache
    assert copies(schedule(product(64, 72, 12, "k", dtype=bf16).task(), SMALL))
    for m in (1, 3, 5, 8, 13):
        problem = product(m, 72, 12, "k")
        assert copies(schedule(problem.task(), SMALL)) == (m > default(problem.sizes, SMALL).tile.rows)


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("b", ["n", "k", "packed24"])
def test_a_problem_and_its_task_copy_alike(b: str, dtype: DType) -> None:
    problem = product(64, 72, 12, b, dtype=dtype)
    task = problem.task()
    found = anchor_of(task)
    assert found is not None
    sizes = sizes_of(task, found[1])
    for config in (default(problem.sizes, SMALL), MatmulConfig(Tile(4, 3), 4), MatmulConfig(Tile(4, 3), 64)):
        assert copies_panels(config, problem.sizes, SMALL) == copies_panels(config, sizes, SMALL)
