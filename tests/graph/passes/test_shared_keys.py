"""Single queries of heads that share their keys become queries of one head, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.attention import attention
from taskmap.graph.passes.shared_keys import GroupQueries
from taskmap.graph.reference import run
from taskmap.ir.construct import static_size
from taskmap.ir.types import DType, boolean, f32


def given(*shapes: tuple[int, ...], mask: DType = f32) -> list[InputNode]:
    return [InputNode((), shape, f32 if i < 3 else mask, i) for i, shape in enumerate(shapes)]


def heads(graph: Graph) -> tuple[int, int]:
    """Heads and queries of the only attention of a graph."""
    (found,) = (n for n in graph.nodes() if n.is_compute and n.op == "attention")
    return static_size(found.shape[1]) or 0, static_size(found.shape[2]) or 0


def grouped(inputs: list[InputNode], out: Node, cores: int) -> Graph:
    """The graph with grouped queries, after a comparison of results."""
    graph = Graph(inputs, [out])
    made = GroupQueries(cores).run(graph)
    rng = np.random.default_rng()
    arrays = [
        rng.random([static_size(d) or 0 for d in n.shape]) < 0.5
        if n.dtype == boolean
        else rng.standard_normal([static_size(d) or 0 for d in n.shape]).astype(np.float32)
        for n in inputs
    ]
    np.testing.assert_allclose(run(made, arrays)[0], run(graph, arrays)[0], rtol=1e-6, atol=1e-6)
    return made


@pytest.mark.parametrize(
    ("cores", "found"), [(1, (2, 6)), (2, (2, 6)), (3, (4, 3)), (4, (4, 3)), (6, (6, 2)), (7, (12, 1)), (64, (12, 1))]
)
def test_heads_remain_for_all_cores(cores: int, found: tuple[int, int]) -> None:
    q, k, v = given((1, 12, 1, 8), (1, 2, 9, 8), (1, 2, 9, 4))
    assert heads(grouped([q, k, v], attention(q, k, v), cores)) == found


@pytest.mark.parametrize("mask", [f32, boolean])
@pytest.mark.parametrize("shape", [(9,), (2, 1, 1, 9), (2, 6, 1, 9)])
def test_masks_stay_with_their_queries(shape: tuple[int, ...], mask: DType) -> None:
    q, k, v, m = given((2, 6, 1, 8), (2, 2, 9, 8), (2, 2, 9, 8), shape, mask=mask)
    assert heads(grouped([q, k, v, m], attention(q, k, v, m, scale=0.3), 4)) == (2, 3)


def test_other_attentions_stay() -> None:
    """With several queries per head, with a causal mask, or with keys for each head."""
    for queries, shared, causal in ((2, 2, False), (1, 2, True), (1, 4, False)):
        q, k, v = given((1, 4, queries, 8), (1, shared, 9, 8), (1, shared, 9, 8))
        assert heads(grouped([q, k, v], attention(q, k, v, causal=causal), 1)) == (4, queries)
