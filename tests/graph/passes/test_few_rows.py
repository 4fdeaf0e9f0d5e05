"""Products of few rows with a transposed matrix are multiplied the other way round, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.views import transpose
from taskmap.graph.passes.few_rows import MultiplyFewRows
from taskmap.graph.reference import run
from taskmap.ir.target import cpu_target
from taskmap.ir.types import DType, bf16, f32, f64
from taskmap.targets.cpu_passes import cpu_passes


def products(
    rows: int, dtype: DType = f32, columns: int = 301, turned: bool = True, constant: bool = False
) -> list[str]:
    """The products of a graph after the pass, whose results are compared."""
    x = InputNode((), (rows, 12), dtype, 0)
    w = InputNode((), (columns, 12) if turned else (12, columns), dtype, 1)
    y: Node = mm(x, transpose(w, 0, 1) if turned else w)
    graph = Graph([x, w], [y], constant_inputs=frozenset({1} if constant else ()))
    made = MultiplyFewRows().run(graph)
    if dtype != bf16:
        rng = np.random.default_rng()
        arrays = [
            rng.standard_normal([int(str(n)) for n in i.shape]).astype(dtype.name.replace("f", "float"))
            for i in graph.inputs
        ]
        (got,), (wanted,) = run(made, arrays), run(graph, arrays)
        assert got.shape == wanted.shape == (rows, columns)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    return [f"{n.op} {n.shape}" for n in made.nodes() if n.is_compute and n.op in ("mm", "mv")]


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_very_few_rows_are_dot_products(rows: int, dtype: DType) -> None:
    assert products(rows, dtype) == ["mv (301,)"] * rows


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("rows", [9, 128])
def test_few_rows_become_the_right_operand(rows: int, dtype: DType) -> None:
    assert products(rows, dtype) == [f"mm (301, {rows})"]


def test_others_stay() -> None:
    """Many rows or hardly fewer than columns, a matrix whose rows lie together, one that is packed once, and narrow
    floats."""
    assert products(129) == ["mm (129, 301)"]
    assert products(9, columns=17) == ["mm (9, 17)"]
    for rows in (1, 2, 9):
        assert products(rows, turned=False) == [f"mm ({rows}, 301)"]
        assert products(rows, constant=True) == [f"mm ({rows}, 301)"]
        assert products(rows, bf16) == [f"mm ({rows}, 301)"]


def test_strategies_of_users_find_products_as_they_are() -> None:
    target = cpu_target("avx2", 2)
    assert any(isinstance(p, MultiplyFewRows) for p in cpu_passes(target))
    assert not any(isinstance(p, MultiplyFewRows) for p in cpu_passes(target, pack=False))
