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
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.prefetches import has_prefetches
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


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_bytes_are_not_prefetched(rows: int) -> None:
    """Panels lie one after another, so a processor fetches them on its own, faster than by hints."""
    assert not has_prefetches(schedule(fused([with_scales(rows, 256, 64 * GROUP, 128)]), target("avx512")))
