"""Products with weights computed from packed bytes: the tile is as wide as the panels, edges included."""

from __future__ import annotations

import random
import re

import pytest

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.ir.construct import cast, reduce
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Var
from taskmap.ir.types import bf16, f32, u8
from taskmap.schedules import schedule
from taskmap.schedules.cpu.matmul.amx_blocking import LINE
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.prefetches import has_prefetches, prefetched
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case, check, isas, target

GROUP = 16


def with_scales(rows: int, n: int, k: int, width: int) -> Node:
    """A product of bf16 with bytes in panels of ``width`` columns, and a scale for each 16 terms of a column."""
    panels = -(-n // width)
    x, q = tensor(rows, k, dtype=bf16), tensor(panels, k, width, dtype=u8)
    scale = tensor(panels, k // GROUP, width, dtype=bf16)

    def element(a: Buffer, b: Buffer, s: Buffer) -> object:
        def at(i: Expr, j: Expr) -> ExprLike:
            g, p = Var("g"), Var("p")
            term = g * GROUP + p
            weight = cast(b[j // width, term, j % width], f32) * cast(s[j // width, g, j % width], f32)
            return cast(reduce("sum", [(p, GROUP), (g, k // GROUP)], cast(a[i, term], f32) * weight), bf16)

        return at

    return define("mm", [x, q, scale], (rows, n), element, bf16)  # type: ignore[arg-type]  # `at` has two axes


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(("n", "width"), [(96, 48), (100, 48), (33, 80), (112, 112)])
def test_the_tile_is_a_panel(n: int, width: int, rows: int) -> None:
    kernel = schedule(fused([with_scales(rows, n, 4 * GROUP, width)]), target("avx512"))
    assert re.search(rf"tile=\dx{width},", kernel.note)


def test_values() -> None:
    chance, cases = random.Random(), list[Case]()
    for rows, n, width in [(1, 96, 48), (2, 100, 48), (7, 33, 80), (3, 112, 112)]:
        task = fused([with_scales(rows, n, 4 * GROUP, width)], name=f"mm_{rows}_{width}")
        arrays = [random_array(chance, b.dtype, [size_of(d, {}) for d in b.shape]) for b in task.inputs]
        cases += [Case(task, arrays, isa=isa) for isa in isas()]
    check(cases, {"bf16": 6e-2})


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("n", "width"), [(96, 48), (256, 128), (224, 112)])
def test_each_line_of_bytes_is_prefetched_about_once(n: int, width: int, rows: int) -> None:
    k = 64 * GROUP
    kernel = schedule(fused([with_scales(rows, n, k, width)]), target("avx512"))
    found = [at // LINE for at in prefetched(kernel.body, {})]
    first = min(found)
    assert first * LINE <= k * width  # within reach of the panel that is read
    assert set(found) == set(range(first, first + n * k // LINE))
    assert len(found) <= 2 * len(set(found))


def test_tiles_that_share_a_panel_do_not_prefetch_it_again() -> None:
    kernel = schedule(fused([with_scales(64, 96, 4 * GROUP, 48)]), target("avx512"))
    assert not has_prefetches(kernel)
