"""Growing concatenations: every tensor is written once, into a part of one buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.models.densenet import DENSENET121
from taskmap.graph.fusion.planning import Group, Plan
from taskmap.graph.nodes import Graph
from taskmap.graph.reference import run
from taskmap.ir.interp.definitions import size_of
from tests.graph.networks import FunctionModule, graph_of, planned
from tests.graph.running import run_plan


def groups(made: Plan) -> list[Group]:
    return [s for s in made.steps if isinstance(s, Group)]


def joined(made: Plan) -> int:
    """The number of kernels that compute a concatenation or a copy."""
    return sum(any(n.op in ("cat", "copy") for n in g.nodes) for g in groups(made))


def right(graph: Graph, made: Plan, seed: int = 0) -> None:
    """Running the plan in its own storage gives what the definitions say."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal([size_of(d, {}) for d in n.shape]).astype(np.float32) for n in graph.inputs]
    for got, expected in zip(run_plan(graph, made, inputs), run(graph, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def block(x: Tensor, *weights: Tensor) -> Tensor:
    """A dense block: each convolution reads all tensors before it, through an element-wise function."""
    parts = [F.max_pool2d(x, 3, 1, 1)]
    for w in weights:
        parts.append(F.conv2d(torch.tanh(torch.cat(parts, 1)), w, padding=1))
    return torch.tanh(torch.cat(parts, 1)).mean((2, 3))


def nested_block(x: Tensor, *weights: Tensor) -> Tensor:
    """The same, in the other common spelling."""
    x = F.max_pool2d(x, 3, 1, 1)
    for w in weights:
        x = torch.cat([x, F.conv2d(torch.tanh(x), w, padding=1)], 1)
    return torch.tanh(x).mean((2, 3))


def new_first(x: Tensor, *weights: Tensor) -> Tensor:
    """The same with each new tensor in front."""
    parts = [F.max_pool2d(x, 3, 1, 1)]
    for w in weights:
        parts.insert(0, F.conv2d(torch.tanh(torch.cat(parts, 1)), w, padding=1))
    return torch.tanh(torch.cat(parts, 1)).mean((2, 3))


def arguments(layers: int, first: int = 5, growth: int = 3) -> list[Tensor]:
    x = torch.randn(1, first, 7, 7)
    return [x, *(torch.randn(growth, first + growth * i, 3, 3) for i in range(layers))]


@pytest.mark.parametrize("function", [block, nested_block, new_first])
def test_a_dense_block_is_one_buffer(function: Callable[..., Tensor]) -> None:
    graph = graph_of(FunctionModule(function), *arguments(4))
    made = planned(graph)
    assert joined(made) == 0
    parts = {n for g in groups(made) for n in g.outputs if n.op in ("max_pool", "convolution")}
    places = [made.placements[n] for n in parts]
    assert len(parts) == 5
    assert len({p.root for p in places}) == 1
    assert places[0].root.shape == (1, 17, 7, 7)
    assert len({p.offset for p in places}) == 5
    right(graph, made)


def test_densenet_has_three_kernels_a_layer_and_none_that_selects() -> None:
    module, args, _ = DENSENET121.build(small=True)
    made = planned(graph_of(module, *args))
    assert joined(made) == 0
    every_call = [g for g in groups(made) if not g.once]
    assert len(every_call) <= 3 * (3 + 6 + 12 + 8) + 9
    buffers = {p.root for n, p in made.placements.items() if n.attrs.get("in_place")}
    assert len(buffers) == 4


def test_a_shorter_one_that_is_returned_has_its_own_memory() -> None:
    def function(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        a = F.conv2d(x, v, padding=1)
        ab = torch.cat([a, F.conv2d(a, w, padding=1)], 1)
        return ab, torch.tanh(torch.cat([ab, F.conv2d(torch.tanh(ab), v[:, :1].repeat(1, 6, 1, 1), padding=1)], 1))

    graph = graph_of(
        FunctionModule(function), torch.randn(1, 5, 7, 7), torch.randn(3, 5, 3, 3), torch.randn(3, 3, 3, 3)
    )
    made = planned(graph)
    first, second = made.outputs
    assert first is not None
    assert second is not None
    assert made.placements[first].root is not made.placements[second].root
    assert made.placements[first].root.shape == (1, 6, 7, 7)
    right(graph, made)


def test_two_that_begin_alike_share_at_most_one_buffer() -> None:
    def function(x: Tensor, v: Tensor) -> Tensor:
        a, b, c, d = (F.conv2d(x * i, v, padding=1) for i in range(1, 5))
        ab = torch.cat([a, b], 1)
        return ab.tanh().mean() + torch.cat([a, b, c], 1).sin().mean() + torch.cat([a, b, d], 1).cos().mean()

    graph = graph_of(FunctionModule(function), torch.randn(1, 5, 7, 7), torch.randn(3, 5, 3, 3))
    right(graph, planned(graph))


def test_another_axis_is_another_concatenation() -> None:
    def function(x: Tensor, v: Tensor) -> Tensor:
        a, b, c = (F.conv2d(x * i, v, padding=1) for i in range(1, 4))
        return torch.cat([a, b], 2).tanh().mean() + torch.cat([a, b, c], 1).sin().mean()

    graph = graph_of(FunctionModule(function), torch.randn(1, 5, 7, 7), torch.randn(3, 5, 3, 3))
    made = planned(graph)
    assert not any(n.attrs.get("in_place") for n in made.placements)
    right(graph, made)


def test_a_tensor_that_occurs_twice() -> None:
    def function(x: Tensor, v: Tensor) -> Tensor:
        a, b = (F.conv2d(x * i, v, padding=1) for i in range(1, 3))
        return torch.cat([a, a], 1).tanh().mean() + torch.cat([a, a, b], 1).sin().mean()

    graph = graph_of(FunctionModule(function), torch.randn(1, 5, 7, 7), torch.randn(3, 5, 3, 3))
    right(graph, planned(graph))


@pytest.mark.parametrize("seed", range(12))
def test_random_concatenations_of_concatenations(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        axis = int(rng.integers(0, 3))
        values = [x @ w, (x * 2) @ w, x.softmax(-1) @ w]
        results = []
        for _ in range(5):
            chosen = [values[i] for i in sorted(rng.integers(0, len(values), int(rng.integers(2, 4))))]
            same = [t for t in chosen if all(t.shape[d] == chosen[0].shape[d] for d in range(3) if d != axis)]
            joined = torch.cat(same, axis)
            kind = int(rng.integers(0, 4))
            if kind == 0:
                results.append(joined)
            else:
                results.append(joined.tanh().sum(axis) if kind == 1 else joined.sum(-1))
            values += [joined] if kind != 3 else [joined.exp()]
        return tuple(results)

    graph = graph_of(FunctionModule(function), torch.randn(2, 3, 5), torch.randn(2, 5, 7))
    made = planned(graph)
    right(graph, made, seed)
