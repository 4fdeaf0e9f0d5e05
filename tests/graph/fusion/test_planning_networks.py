"""Fusion in the networks that people compile: which operators share a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.models import MODELS
from taskmap.graph.analysis.placement import channels_last
from taskmap.graph.fusion.groups import MAX_INPUTS, MAX_NODES
from taskmap.graph.fusion.planning import Group, Plan
from taskmap.graph.nodes import InputNode
from taskmap.graph.reference import run
from taskmap.ir.interp.definitions import size_of
from tests.graph.networks import FunctionModule, graph_of, graph_of_model, kernels, planned
from tests.graph.running import run_plan


class Bottleneck(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width)
        self.b, self.nb = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.c, self.nc = nn.Conv2d(width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width)
        self.s, self.ns = nn.Conv2d(2 * width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.na(self.a(x)))
        y = torch.relu(self.nb(self.b(y)))
        return torch.relu(self.nc(self.c(y)) + self.ns(self.s(x)))


def groups(made: Plan) -> list[Group]:
    return [g for g in made.steps if isinstance(g, Group) and not g.once]


def plan_of(function: Callable[..., Any], *args: Tensor) -> Plan:
    return planned(graph_of(FunctionModule(function), *args))


def test_every_convolution_of_a_bottleneck_is_one_kernel_with_what_follows() -> None:
    made = planned(graph_of(Bottleneck(), torch.randn(1, 16, 6, 6)))
    assert kernels(made) == [
        "contraction: convolution_add_relu",
        "contraction: convolution_add_relu",
        "contraction: convolution_add",
        "contraction: convolution_add_add_relu",
    ]


def test_values_between_convolutions_are_channels_last() -> None:
    made = planned(graph_of(Bottleneck(), torch.randn(1, 16, 6, 6)))
    result = made.outputs[0]
    for group in groups(made):
        for node in group.outputs:
            expected = node.strides if node is result else channels_last(node.shape)
            assert made.placements[node].strides == expected


def test_batch_norm_folds_into_constant_weights_once() -> None:
    made = planned(graph_of(Bottleneck(), torch.randn(1, 16, 6, 6)))
    once = [g for g in made.steps if isinstance(g, Group) and g.once]
    assert sum("scaled_weight" in g.name for g in once) == 4
    assert all("batch_norm" not in g.name for g in groups(made))


def test_batch_norm_of_weights_that_change_stays_behind_its_convolution() -> None:
    graph = graph_of(Bottleneck(), torch.randn(1, 16, 6, 6))
    changing = replace(graph, constant_inputs=frozenset())
    assert sum("convolution_batch_norm" in name for name in kernels(planned(changing))) == 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x * 0.5, -1),
        lambda x: nn.functional.layer_norm(torch.relu(x), (32,)),
        lambda x: nn.functional.rms_norm(x, (32,)) * 2,
        lambda x: torch.softmax(x + 1, -1).amax(-1),
        lambda x: (x.var(-1), x.mean(-1)),
        lambda x: (x * torch.sigmoid(x)).sum(-1),
    ],
)
def test_operators_along_the_same_rows_are_one_kernel(function: Callable[..., Any]) -> None:
    made = plan_of(function, torch.randn(4, 6, 32))
    assert [g.kind for g in groups(made)] == ["row"]


def test_a_softmax_over_channels_is_not_along_rows() -> None:
    made = plan_of(lambda x: torch.softmax(x, 1), torch.randn(2, 8, 5, 5))
    assert "row" not in [g.kind for g in groups(made)]


def test_a_reduction_is_refused_by_a_matrix_product() -> None:
    made = plan_of(lambda x, w: torch.softmax(x @ w, -1), torch.randn(8, 16), torch.randn(16, 32))
    product, rows = groups(made)
    assert (product.kind, rows.kind) == ("contraction", "row")
    assert [(n.op, why) for n, why in product.refused if n.op == "amax"] == [
        ("amax", "a reduction needs whole rows, and an anchor's tile holds only part of each")
    ]


def test_a_residual_is_added_by_the_later_product() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        left, right = x @ a, x @ b
        return left + torch.relu(right)

    made = plan_of(function, torch.randn(8, 16), torch.randn(16, 16), torch.randn(16, 16))
    assert kernels(made) == ["contraction: mm", "contraction: mm_relu_add"]


def test_a_second_product_opens_a_kernel_and_says_why() -> None:
    made = plan_of(lambda x, w: torch.relu(x @ w) @ w, torch.randn(8, 16), torch.randn(16, 16))
    first, second = groups(made)
    assert first.name == "mm_relu"
    assert "an anchor reads its operands tile by tile" in {n.op: why for n, why in first.refused}["mm"]
    assert second.name == "mm"


def test_a_value_used_elsewhere_is_a_further_output() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w + 1
        return y, torch.relu(y)

    (group,) = groups(plan_of(function, torch.randn(8, 16), torch.randn(16, 16)))
    assert group.kind == "contraction"
    assert len(group.outputs) == 2


def test_a_reader_of_another_kernels_result_stays_outside() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(x)
        return y * 2 + (y @ w)

    made = plan_of(function, torch.randn(16, 16), torch.randn(16, 16))
    names = kernels(made)
    assert len(names) == 2
    assert names[1].startswith("contraction: mm")


def test_a_square_moves_to_the_norm_that_alone_reads_it() -> None:
    def function(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w + x
        return y, y * torch.rsqrt((y * y * y).mean(-1, keepdim=True) + 1e-6) * g

    product, rows = groups(plan_of(function, torch.randn(8, 16), torch.randn(16, 16), torch.randn(16)))
    assert len(product.outputs) == 1
    assert [n.op for n in rows.nodes][:2] == ["mul", "mul"]


def test_a_tail_stays_where_moving_it_saves_nothing() -> None:
    def function(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(x @ w + a + b, -1)

    args = (torch.randn(8, 16), torch.randn(16, 16), torch.randn(8, 16), torch.randn(8, 16))
    assert kernels(plan_of(function, *args))[0] == "contraction: mm_add_add"


def test_two_reductions_of_the_same_rows_share_a_kernel() -> None:
    made = plan_of(lambda x, y: (x * y).sum(-1) + x.amax(-1), torch.randn(4, 6, 32), torch.randn(4, 6, 32))
    assert [g.kind for g in groups(made)] == ["row"]


def test_a_squeeze_and_excite_gate_forms_no_cycle() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = torch.relu(nn.functional.conv2d(x, w))
        gate = torch.sigmoid(nn.functional.conv2d(y.mean((2, 3), keepdim=True), v))
        return y * gate

    made = plan_of(function, torch.randn(1, 8, 5, 5), torch.randn(8, 8, 1, 1), torch.randn(8, 8, 1, 1))
    assert [g.kind for g in groups(made)] == ["contraction", "reduce", "contraction", "pointwise"]


def test_a_concatenation_of_convolutions_needs_no_kernel() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        joined = torch.cat([nn.functional.conv2d(x, a), torch.relu(nn.functional.conv2d(x, b))], 1)
        return nn.functional.conv2d(joined, c)

    args = (torch.randn(1, 4, 5, 5), torch.randn(3, 4, 1, 1), torch.randn(5, 4, 1, 1), torch.randn(2, 8, 1, 1))
    made = plan_of(function, *args)
    assert kernels(made) == [
        "contraction: convolution", "contraction: convolution_relu", "contraction: convolution",
    ]  # fmt: skip
    first, second, _ = groups(made)
    places = [made.placements[g.outputs[0]] for g in (first, second)]
    assert places[0].root is places[1].root
    assert [p.offset for p in places] == [0, 3]
    assert places[0].strides == (200, 1, 40, 8)


def test_an_input_of_a_concatenation_in_place_is_copied() -> None:
    def function(x: Tensor, a: Tensor, c: Tensor) -> Tensor:
        return nn.functional.conv2d(torch.cat([nn.functional.conv2d(x, a), x], 1), c)

    made = plan_of(function, torch.randn(1, 4, 5, 5), torch.randn(4, 4, 1, 1), torch.randn(2, 8, 1, 1))
    assert kernels(made) == ["contraction: convolution", "pointwise: copy", "contraction: convolution"]


def test_a_concatenation_that_is_computed_on_is_fused() -> None:
    made = plan_of(lambda x, y: torch.relu(torch.cat([x, -y], 1)) * 2, torch.randn(4, 6), torch.randn(4, 6))
    assert len(groups(made)) == 1


def test_a_view_as_result_lies_in_the_memory_of_what_it_views() -> None:
    made = plan_of(lambda x: torch.relu(x).reshape(4, 3, 2).select(1, 1), torch.randn(4, 6))
    (group,) = groups(made)
    result = made.outputs[0]
    assert result is not None
    assert made.placements[result].root is group.outputs[0]
    assert (made.placements[result].strides, made.placements[result].offset) == ((6, 1), 2)


def test_a_clone_as_result_has_memory_of_its_own() -> None:
    made = plan_of(lambda x: (torch.relu(x), torch.relu(x).clone(), x.clone()), torch.randn(4, 6))
    roots = [made.placements[n].root for n in made.outputs if n is not None]
    assert len(set(roots)) == 3
    assert not any(isinstance(r, InputNode) for r in roots)


def test_a_mask_from_positions_is_computed_where_it_is_read() -> None:
    def function(x: Tensor) -> Tensor:
        ahead = torch.arange(8)[None, :] > torch.arange(8)[:, None]
        return torch.softmax(x.masked_fill(ahead, float("-inf")), -1)

    (group,) = groups(plan_of(function, torch.randn(4, 8, 8)))
    assert group.kind == "row"
    assert [n.op for n in group.inputs] == ["input"]


def test_mobilenets_clamp_is_part_of_its_convolutions() -> None:
    made = planned(graph_of_model("mobilenet_v2"))
    assert all(g.kind in ("contraction", "reduce") for g in groups(made))
    assert all(g.anchor is not None or g.name == "mean" for g in groups(made))


LONG = {"inception_v3"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in sorted(MODELS)])
def test_the_kernels_of_a_network(name: str, golden: Callable[[str, str], None]) -> None:
    made = planned(graph_of_model(name))
    assert all(isinstance(s, Group) for s in made.steps)
    golden(f"plan_{name}.txt", "\n".join(kernels(made)))


def test_planning_is_quick() -> None:
    graph = graph_of_model("mobilenet_v2")
    assert len(graph.nodes()) > 600
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        planned(graph)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 2  # 0.2 s on a quiet machine


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.norm(x + torch.relu(self.linear(x))).view(*x.shape[:2], 4, 4).transpose(1, 2)
        return torch.softmax(heads * 0.5, -1).transpose(1, 2).flatten(2)


def test_symbolic_batch_and_length() -> None:
    graph = graph_of(Layer(), torch.randn(3, 5, 16), dynamic=True)
    made = planned(graph)
    assert kernels(made)[:2] == ["contraction: mm_add_relu_add", "row: mean_distance_mean_square_sum_mean_var"]
    assert all(g.task.dims for g in groups(made))
    rng = np.random.default_rng(0)
    for batch, length in ((3, 5), (2, 7), (1, 1)):
        # Sizes come first among the inputs when AOTAutograd passes them on.
        sizes = iter((batch, length))
        shapes = [[size_of(n, {}) if isinstance(n, int) else None for n in x.shape] for x in graph.inputs]
        inputs = [
            next(sizes)
            if isinstance(x, InputNode) and x.is_size
            else rng.standard_normal(_known(shape, batch, length)).astype(np.float32)
            for x, shape in zip(graph.inputs, shapes, strict=True)
        ]
        (got,), (expected,) = run_plan(graph, made, inputs), run(graph, inputs)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def _known(shape: list[int | None], batch: int, length: int) -> list[int]:
    rest = iter((batch, length))
    return [next(rest) if n is None else n for n in shape]


def test_a_long_chain_is_cut() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(MAX_NODES + 20):
            x = torch.relu(x + 1)
        return x

    first, second, *_ = groups(plan_of(function, torch.randn(4, 6)))
    assert MAX_NODES <= len(first.nodes) <= MAX_NODES + 2  # inlined nodes do not count
    assert f"a kernel has at most {MAX_NODES} operators" in [why for _, why in first.refused]
    assert second.inputs == first.outputs


def test_a_kernel_has_a_limited_number_of_inputs() -> None:
    def function(*xs: Tensor) -> Tensor:
        return torch.relu(sum(xs[1:], xs[0]))

    made = plan_of(function, *(torch.randn(4, 6) for _ in range(MAX_INPUTS + 5)))
    first, second = groups(made)
    assert len(first.inputs) == MAX_INPUTS
    assert f"a kernel has at most {MAX_INPUTS} inputs" in [why for _, why in first.refused]
    assert first.outputs[0] in second.inputs
