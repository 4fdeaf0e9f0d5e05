"""The graph IR as a value: a node refuses to be changed, and another takes its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from taskmap.graph.nodes import (
    ConstantNode,
    ExternNode,
    Graph,
    InputNode,
    ItemNode,
    Node,
    Origin,
    OriginContext,
    SizeNode,
    rebuilt,
)
from taskmap.graph.ops.activations import relu
from taskmap.graph.ops.arithmetic import add
from taskmap.graph.ops.convolution import convolution
from taskmap.graph.ops.join import cat
from taskmap.graph.passes import PASSES
from taskmap.ir.nodes import Var
from taskmap.ir.types import f32, i64

X = InputNode((), (4, 6), f32)
NODES: Sequence[Node] = (
    X,
    relu(X),
    ConstantNode((), (), f32, 1.0),
    ExternNode((X,), (4, 6), f32, max, (), {}, "a test"),
    ItemNode((X,), (4, 6), f32, 1),
    SizeNode((), (), i64, Var("n")),
)


@pytest.mark.parametrize("node", NODES, ids=lambda n: type(n).__name__)
def test_a_node_refuses_to_be_changed(node: Node) -> None:
    before = [getattr(node, f.name) for f in fields(node)]
    for f in fields(node):
        with pytest.raises(FrozenInstanceError):
            setattr(node, f.name, None)
        with pytest.raises(FrozenInstanceError):
            delattr(node, f.name)
    assert all(getattr(node, f.name) is was for f, was in zip(fields(node), before, strict=True))


def test_attributes_of_an_operator_refuse_to_be_changed() -> None:
    image, weight = InputNode((), (1, 3, 8, 8), f32), InputNode((), (4, 3, 3, 3), f32)
    joined = cat([relu(X), relu(X)], 0)
    graph = Graph([X, image, weight], [convolution(image, weight, (1,), (1,), (1,)), joined], {}, frozenset({2}))
    for step in PASSES:
        graph = step.run(graph)
    for node in (*graph.nodes(), relu(X)):
        with pytest.raises(TypeError, match="does not support item assignment"):
            node.attrs["groups"] = 2  # type: ignore[index]  # that is the test


def test_a_node_is_equal_to_itself_alone() -> None:
    again = replace(X)
    assert again != X
    assert len({X, again}) == 2
    assert again.id == X.id  # it takes X's place


def test_new_nodes_have_the_origin_of_their_operator() -> None:
    here = Origin("relu")
    with OriginContext(here):
        made = relu(X)
        with OriginContext(Origin("inner")):
            assert relu(X).origin == Origin("inner")
        assert relu(X).origin is here
        assert replace(relu(X), origin=Origin("own")).origin == Origin("own")
        assert InputNode((), (), f32).origin == ConstantNode((), (), f32, 1.0).origin == Origin()
    assert made.origin is here
    assert replace(made, strides=(1, 4)).origin is here
    assert relu(X).origin == Origin()


def test_readers_of_a_rebuilt_node_read_the_new_one() -> None:
    a = relu(X)
    b = add(a, X)
    c = add(b, a)
    made = rebuilt([X, a, b, c], lambda now, was: replace(now, strides=(1, 4)) if was is a else now)
    assert made[X] is X
    assert made[a].strides == (1, 4)
    assert made[b].inputs == (made[a], X)
    assert made[c].inputs == (made[b], made[a])
    assert [n.id for n in made.values()] == [n.id for n in made]
    assert a.strides is None
    assert b.inputs == (a, X)


def test_nodes_that_read_nothing_new_stay() -> None:
    a, b = relu(X), relu(X)
    made = rebuilt([X, a, b], lambda now, was: replace(now, strides=(1, 4)) if was is a else now)
    assert made[b] is b


def test_a_rebuilding_is_continued() -> None:
    a = relu(X)
    made = rebuilt([a], lambda now, was: replace(now, strides=(1, 4)))
    b = add(a, X)
    assert rebuilt([b], lambda now, was: now, made) is made
    assert made[b].inputs == (made[a], X)
