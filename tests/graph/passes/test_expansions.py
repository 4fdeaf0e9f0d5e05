"""Products that only a depthwise convolution reads are marked for its kernel, packed for it, and fused; others stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from taskmap.graph.fusion.planning import Group, plan
from taskmap.graph.nodes import Graph, InputNode, Node, OperatorNode
from taskmap.graph.ops import activations, arithmetic, pooling, rearrange
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.passes.convolutions.expansions import JoinExpansions
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.graph.reference import run
from taskmap.ir.expansion import ATTRIBUTE, WIDTH, ExpansionChoice, ExpansionSizes
from taskmap.ir.nodes import Var
from taskmap.ir.types import DType, f16, f32
from tests.graph.running import run_plan

IMAGE, OTHER, WEIGHT, WINDOW, BIAS = range(5)
"""The inputs of a network: the image, one as wide as its product, the weights of both convolutions, a bias."""


def always(sizes: ExpansionSizes, hints: Mapping[Var, int]) -> ExpansionChoice:
    return ExpansionChoice(8, "because")


def never(sizes: ExpansionSizes, hints: Mapping[Var, int]) -> ExpansionChoice:
    return ExpansionChoice(0, "too slow")


def inputs(dtype: DType = f32) -> list[InputNode]:
    shapes = [(2, 3, 6, 7), (2, 20, 6, 7), (20, 3, 1, 1), (20, 1, 3, 3), (20,)]
    return [InputNode((), shape, dtype, i) for i, shape in enumerate(shapes)]


def network(given: list[InputNode], between: Callable[[Node], Node] = activations.relu, stride: int = 1) -> list[Node]:
    """The wide image, before and after ``between``, and the depthwise convolution of it."""
    wide = add_channel_bias(convolution(given[IMAGE], given[WEIGHT], [1], [0], [1]), given[BIAS])
    image = between(wide)
    return [wide, image, convolution(image, given[WINDOW], [stride], [1], [1], False, [0], 20)]


def graph_of(given: list[InputNode], outputs: list[Node | None], constant: tuple[int, ...] = (2, 3, 4)) -> Graph:
    return Graph(given, outputs, constant_inputs=frozenset(constant))


def marks(graph: Graph) -> list[tuple[str, object]]:
    """The marks of convolutions, in order."""
    return [(name, n.attrs[name]) for n in graph.nodes() for name in (ATTRIBUTE, WIDTH) if name in n.attrs]


def groups(graph: Graph) -> list[Group]:
    return [step for step in plan(graph).steps if isinstance(step, Group) and not step.once]


def arrays(graph: Graph) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal([int(str(n)) for n in node.shape]).astype(np.float32) for node in graph.inputs]


@pytest.mark.parametrize("stride", [1, 2])
def test_one_kernel_computes_both(stride: int) -> None:
    given = inputs()
    graph = graph_of(given, [activations.relu(network(given, stride=stride)[-1])])
    marked = JoinExpansions(always).run(graph)
    assert marks(graph) == []
    assert marks(marked) == [(WIDTH, 8), (ATTRIBUTE, True)]
    packed = PackWeights(lambda m, n, dtype, **more: 16).run(marked)
    (group,) = groups(packed)
    assert group.kind == "contraction"
    assert group.anchor is not None
    assert group.anchor.attrs["groups"] == 20
    assert [n.op for n in group.nodes if n.op not in ("pack", "view")] == [
        "convolution",
        "add",
        "relu",
        "convolution",
        "relu",
    ]
    assert [n.shape for n in group.inputs if n.op == "pack"] == [(3, 1, 1, 3, 8), (1, 1, 3, 3, 20)]
    assert len(group.outputs) == 1
    made, values = plan(packed), arrays(graph)
    (want,) = run(graph, values)
    (got,) = run_plan(packed, made, values)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert "because" in packed.remarks.values()


def test_two_kernels_where_one_is_slower() -> None:
    given = inputs()
    graph = JoinExpansions(never).run(graph_of(given, [network(given)[-1]]))
    assert marks(graph) == []
    assert list(graph.remarks.values()) == ["too slow"]
    assert [g.kind for g in groups(graph)] == ["contraction"] * 2


BETWEEN: dict[str, Callable[[Node], Node]] = {
    "a window": lambda x: pooling.max_pool(x, 2, [3, 3], [1, 1], [1, 1])[0],
    "other positions": lambda x: rearrange.flip(x, [2]),
    "another image": lambda x: arithmetic.add(x, InputNode((), x.shape, f32, OTHER)),
}


def test_values_that_are_read_elsewhere_stay() -> None:
    given = inputs()
    wide, image, y = network(given)
    for outputs in ([y, wide], [y, image], [y, arithmetic.mul(wide, wide)], [arithmetic.add(y, image)]):
        assert marks(JoinExpansions(always).run(graph_of(given, list(outputs)))) == []


def test_fusion_refuses_a_second_reader_too() -> None:
    """A later pass may have found another reader."""
    given = inputs()
    _, image, y = network(given)
    assert isinstance(y, OperatorNode)
    marked = replace(y, attrs=MappingProxyType({**y.attrs, ATTRIBUTE: True}))
    for outputs in ([marked, image], [arithmetic.add(marked, image)]):
        first, *_ = groups(graph_of(given, list(outputs)))
        assert ("convolution", "its product's values are also read elsewhere") in [
            (n.op, why) for n, why in first.refused
        ]


@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_not_element_wise_stays(name: str) -> None:
    given = inputs()
    assert marks(JoinExpansions(always).run(graph_of(given, [network(given, BETWEEN[name])[-1]]))) == []


def test_weights_that_may_change_stay() -> None:
    given = inputs()
    assert marks(JoinExpansions(always).run(graph_of(given, [network(given)[-1]], (3, 4)))) == []


def test_other_convolutions_stay() -> None:
    given = inputs()

    def marked(image: Node, **more: int) -> bool:
        slide = [more.get("stride", 1)], [1], [1], bool(more.get("transposed")), [0], 20
        y = convolution(image, given[WINDOW], *slide)
        return bool(marks(JoinExpansions(always).run(graph_of(given, [y]))))

    image = given[IMAGE]
    plain = convolution(image, given[WEIGHT], [1], [0], [1])
    assert marked(plain)
    assert marked(convolution(image, given[WEIGHT], [2], [0], [1]))
    assert not marked(plain, transposed=1)
    assert not marked(convolution(image, given[WEIGHT], [1], [1], [1]))  # a bias of its border, not a product
    window = InputNode((), (20, 3, 3, 3), f32, 2)
    assert not marked(convolution(image, window, [1], [1], [1]))
    dense = convolution(plain, InputNode((), (20, 20, 3, 3), f32, 3), [1], [1], [1])
    assert marks(JoinExpansions(always).run(graph_of(given, [dense]))) == []
    narrow = inputs(f16)
    assert marks(JoinExpansions(always).run(graph_of(narrow, [network(narrow)[-1]]))) == []
