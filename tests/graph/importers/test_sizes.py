"""Symbolic sizes: one graph serves every size, and records where it finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from taskmap.graph.analysis.classify import definition
from taskmap.graph.importers.torch.aten import ATEN
from taskmap.graph.nodes import Node, SizeNode
from taskmap.graph.ops.arithmetic import add
from taskmap.graph.ops.views import select_, unsqueeze
from taskmap.graph.reference import dimensions
from taskmap.ir.printer import print_dim
from tests.graph.importers.test_operators import draw
from tests.graph.tracing import Traced, assert_equal, compile_flat, evaluate

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: (x + 1).relu() * x[0],
    "reshape": lambda x: (x.reshape(-1, 2) + 0, x.flatten() + 1, x.view(x.shape[0], 2, -1).transpose(1, 2) + 0),
    "sizes as numbers": lambda x: (x * x.shape[0] / x.numel() ** 0.5, x.new_ones(x.shape[1]) * (x.shape[0] // 3)),
    "reductions": lambda x: (x.mean(0), x.std(1), x.softmax(1), x.var(), x.logsumexp(0), x.argmax(), x.amax(1)),
    "slices": lambda x: (x[1:-1] + 0, x[::2, -2:] * 2, x[:, x.shape[1] // 2 :] + 1, x.chunk(2, 1)[1] * 1),
    "join": lambda x: (torch.cat([x, x * 2, x[:1]]), torch.stack([x, x], 1), F.pad(x, (1, 2, 0, 3))),
    "move": lambda x: (x.flip(0) + 0, x.roll(1, 1) + 0, x.repeat(2, 3), x.tril(), x.unfold(1, 3, 2) + 0),
    "columns": lambda x: (F.unfold(x[None], 3, padding=1), F.unfold(x[None, None], (2, 1), stride=2)),
    "products": lambda x: (x @ x.t(), F.linear(x, x, x[:, 0]), torch.einsum("ab,cb->ca", x, x)),
    "norm": lambda x: (F.layer_norm(x, x.shape[1:]), F.normalize(x)),
    "convolution": lambda x: F.conv1d(x[:, None], x.new_ones(4, 1, 3), padding=1, stride=2),
    "pooling": lambda x: (F.max_pool2d(x[None], 3, 2, 1), F.avg_pool2d(x[None], 3, 2, 1), F.avg_pool1d(x, 3, 2, 1)),
    "pooling beyond": lambda x: (
        F.max_pool2d(x[None], 3, 2, ceil_mode=True),
        F.avg_pool2d(x[None], 2, 2, ceil_mode=True),
    ),
    "ranges": lambda x: (torch.arange(x.shape[1]) + x, torch.arange(x.shape[0], 2 * x.shape[0]), torch.eye(x.shape[0])),
    "positions": lambda x: (x[x.argmax(0)], x.gather(1, x.argsort(1))),
    "resize": lambda x: F.interpolate(x[None, None], scale_factor=2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_serves_every_size(name: str) -> None:
    function, traced = FUNCTIONS[name], Traced()
    compiled, tensors = compile_flat(function, (draw(6, 8),), {}, traced, dynamic=True)
    compiled(*tensors)
    (graph,) = traced.graphs
    assert all(place[0] in ("input", "size") for place in graph.dims.values())
    assert [n for n in traced.externs if "sort" not in str(n.target)] == []
    for shape in ((6, 8), (4, 10), (9, 14)):
        x = draw(*shape)
        assert_equal(call(traced, x), list_of(function(x)))


def list_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def call(traced: Traced, *given: torch.Tensor) -> list[Any]:
    """The graph at sizes other than those it was traced for: its inputs are the sizes and the tensors."""
    (graph,) = traced.graphs
    tensors = iter(given)
    sizes = [n for t in given for n in t.shape]
    values = iter(sizes)
    inputs = [next(values) if n.is_size else next(tensors) for n in graph.inputs]
    assert set(dimensions(graph, inputs).values()) <= set(sizes)
    return evaluate(graph, inputs)


def test_a_size_may_be_a_result() -> None:
    def function(x: torch.Tensor) -> Any:
        return x + 1, x.shape[0] * 2 + x.shape[1], x.numel()

    traced = Traced()
    compiled, _ = compile_flat(function, (draw(6, 8),), {}, traced, dynamic=True)
    result = compiled(draw(6, 8))
    assert result[1:] == [20, 48]
    assert any(isinstance(n, SizeNode) for n in traced.graphs[0].outputs)


def test_sizes_of_several_inputs_meet() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y], 1)[:, 1:].softmax(-1)

    traced = Traced()
    compiled, tensors = compile_flat(function, (draw(4, 6), draw(4, 3)), {}, traced, dynamic=True)
    assert_equal(compiled(*tensors), [function(*tensors)])
    assert len(traced.graphs[0].dims) == 3


def test_a_result_that_another_reads_stays_one_node_in_pytorchs_form(monkeypatch: pytest.MonkeyPatch) -> None:
    split = ATEN.entries["split.Tensor"]

    def halves(*given: Any) -> tuple[Node, Node]:
        first, second = split.function(*given)
        return first, add(second, unsqueeze(select_(first, 1, 0), 1))

    monkeypatch.setitem(ATEN.entries, "split.Tensor", replace(split, function=halves))
    traced = Traced()
    compiled, tensors = compile_flat(lambda x: x.chunk(2, 1), (draw(6, 8),), {}, traced, dynamic=True)
    compiled(*tensors)
    (graph,) = traced.graphs
    first, second = (n for n in graph.outputs if n is not None)
    assert (first.op, second.op) == ("copy", "add")
    (half,) = first.inputs
    assert second.inputs[1].inputs[0].inputs == (half,)
    assert half.shape == first.shape == definition(half).shape
    assert print_dim(half.shape[1]) == "(1 + n1) // 2"  # the lowering of split gives min((1 + n1) // 2, n1)
    assert second.shape == definition(second).shape
    assert len({n.id for n in graph.nodes()}) == len(graph.nodes())
