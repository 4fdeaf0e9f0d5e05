"""Products of one row with a transposed matrix become dot products, with the same results; others stay."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.views import transpose
from taskmap.graph.passes.single_rows import MultiplySingleRows
from taskmap.graph.reference import run
from taskmap.ir.types import DType, bf16, f32, f64


def products(rows: int, dtype: DType = f32, turned: bool = True, constant: bool = False) -> list[str]:
    """The products of a graph after the pass, whose results are compared."""
    x = InputNode((), (rows, 12), dtype, 0)
    w = InputNode((), (7, 12) if turned else (12, 7), dtype, 1)
    y: Node = mm(x, transpose(w, 0, 1) if turned else w)
    graph = Graph([x, w], [y], constant_inputs=frozenset({1} if constant else ()))
    made = MultiplySingleRows().run(graph)
    if dtype != bf16:
        rng = np.random.default_rng()
        arrays = [
            rng.standard_normal([int(str(n)) for n in i.shape]).astype(dtype.name.replace("f", "float"))
            for i in graph.inputs
        ]
        (got,), (wanted,) = run(made, arrays), run(graph, arrays)
        assert got.shape == wanted.shape == (rows, 7)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    return [n.op for n in made.nodes() if n.is_compute and n.op in ("mm", "mv")]


@pytest.mark.parametrize("dtype", [f32, f64])
def test_one_row(dtype: DType) -> None:
    assert products(1, dtype) == ["mv"]


def test_others_stay() -> None:
    """Several rows, a matrix whose rows lie together, one that is packed once, and narrow floats."""
    assert products(2) == ["mm"]
    assert products(1, turned=False) == ["mm"]
    assert products(1, constant=True) == ["mm"]
    assert products(1, bf16) == ["mm"]
