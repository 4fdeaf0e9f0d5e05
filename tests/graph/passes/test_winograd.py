"""Weights of 3×3 convolutions are transformed once; values stay, and so does every other convolution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.arithmetic import mul
from taskmap.graph.ops.convolution import convolution
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.graph.passes.winograd import TransformWeights
from taskmap.graph.reference import run
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import DType, f16, f32
from taskmap.ir.winograd import ATTRIBUTE, FORMS, FormChoice


def always(outputs: int, width: int) -> TransformWeights:
    def choose(
        image: tuple[Dim, ...], out_channels: int, padding: tuple[int, int], hints: Mapping[Var, int]
    ) -> FormChoice:
        return FormChoice(FORMS[outputs], width, "because")

    return TransformWeights(choose)


def network(
    x: tuple[Dim, ...] = (2, 3, 7, 9),
    w: tuple[int, ...] = (5, 3, 3, 3),
    *,
    dtype: DType = f32,
    constant: bool = True,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    transposed: bool = False,
) -> Graph:
    inputs = [InputNode((), shape, dtype, i) for i, shape in enumerate((x, w))]
    image, weight = inputs
    y = convolution(image, weight, [stride], [1], [dilation], transposed, [0], groups)
    return Graph(inputs, [y], constant_inputs=frozenset([1] if constant else []))


def convolutions(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if n.op == "convolution"]


@pytest.mark.parametrize("outputs", FORMS)
@pytest.mark.parametrize("width", [4, 5, 8])
def test_values_stay(outputs: int, width: int) -> None:
    graph = network()
    made = always(outputs, width).run(graph)
    assert [n.attrs.get(ATTRIBUTE) for n in convolutions(made)] == [outputs]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([size_of(d, {}) for d in n.shape]).astype(np.float32) for n in graph.inputs]
    (want,), (got,) = run(graph, arrays), run(made, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_the_last_panel_is_filled_with_zeros() -> None:
    made = always(4, 4).run(network())
    (weights,) = [n for n in made.nodes() if n.op == "transform_weights"]
    assert weights.shape == (2, 6, 6, 3, 4)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([size_of(d, {}) for d in n.shape]).astype(np.float32) for n in made.inputs]
    (panels,) = run(Graph(made.inputs, [weights]), arrays)
    assert (panels[1, ..., 1:] == 0).all()
    assert (panels[1, ..., 0] != 0).any()


@pytest.mark.parametrize(
    "graph",
    [
        network(stride=2),
        network(dilation=2),
        network((2, 6, 7, 9), (6, 3, 3, 3), groups=2),
        network((2, 5, 7, 9), (5, 3, 3, 3), transposed=True),
        network(w=(5, 3, 1, 1)),
        network(w=(5, 3, 3, 1)),
        network((2, 3, 9), (5, 3, 3)),
        network((2, 3, 5, 7, 9), (5, 3, 3, 3, 3)),
        network(dtype=f16),
        network(constant=False),
    ],
    ids=["stride", "dilation", "groups", "transposed", "1x1", "3x1", "one dimension", "volume", "f16", "not constant"],
)
def test_other_convolutions_stay(graph: Graph) -> None:
    assert str(always(2, 4).run(graph)) == str(graph)


def test_a_choice_of_direct_convolution_is_kept_with_its_reason() -> None:
    def direct(*_: object, **__: object) -> FormChoice:
        return FormChoice(None, 0, "too small")

    graph = network()
    made = TransformWeights(direct).run(graph)
    assert str(made) == str(graph)
    assert made.remarks == {convolutions(graph)[0].id: "too small"}
    assert graph.remarks == {}


def test_reasons_follow_the_node_through_packing() -> None:
    def width(m: Dim, n: Dim, dtype: DType, **more: object) -> int:
        return 16

    made = always(2, 4).run(network())
    packed = PackWeights(width).run(made)
    (node,) = convolutions(packed)
    assert packed.remarks[node.id] == "because"
    assert [n.op for n in packed.nodes() if n.op == "pack"] == []


def test_weights_that_change_are_named_as_the_reason() -> None:
    graph = network(constant=False)
    assert list(always(2, 4).run(graph).remarks.values()) == ["direct: its weights may change from call to call"]


def test_shared_weights_are_transformed_once() -> None:
    graph = network()
    x, w = graph.inputs
    other = InputNode((), (5, 5, 3, 3), f32)
    again = convolution(convolution(x, w, [1], [1], [1]), other, [1], [1], [1])
    both = Graph(
        [x, w, other], [convolution(x, w, [1], [1], [1]), convolution(x, w, [1], [0], [1]), again],
        constant_inputs=frozenset([1, 2]),
    )  # fmt: skip
    made = always(2, 4).run(both)
    assert len(convolutions(made)) == 4
    assert len([n for n in made.nodes() if n.op == "transform_weights"]) == 2


def test_weights_that_are_computed_from_constants_are_transformed() -> None:
    graph = network()
    x, w = graph.inputs
    scaled = mul(w, w)
    made = always(4, 8).run(Graph([x, w], [convolution(x, scaled, [1], [1], [1])], constant_inputs=frozenset([1])))
    assert [n.attrs.get(ATTRIBUTE) for n in convolutions(made)] == [4]
