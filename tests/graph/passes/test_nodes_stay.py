"""No pass changes a node: it makes new ones."""

from __future__ import annotations

from copy import copy
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from taskmap.graph.nodes import ExternNode, Graph, InputNode, Node
from taskmap.graph.passes import PASSES
from taskmap.ir.types import f32
from tests.graph.networks import FunctionModule, graph_of, graph_of_model
from tests.graph.random_graphs import graphs


def changed(graph: Graph) -> list[str]:
    """The nodes that a pass changed, with its name; the passes run one after another."""
    found = []
    for step in PASSES:
        before = {n: _values(n) for n in graph.nodes()}
        made = step.run(graph)
        found += [f"{step.name}: {node!r}" for node, was in before.items() if not _alike(_values(node), was)]
        graph = made
    return found


def _values(node: Node) -> list[Any]:
    """The values of the fields; what can be changed inside, such as a list of arguments, as a copy."""
    return [copy(v) if isinstance(v, (list, dict)) else v for v in (getattr(node, f.name) for f in fields(node))]


def _alike(a: list[Any], b: list[Any]) -> bool:
    return all(x is y or (not isinstance(x, Tensor) and x == y) for x, y in zip(a, b, strict=True))


@given(graphs())
@settings(max_examples=30)
def test_random_graphs(graph: Graph) -> None:
    assert changed(graph) == []


def test_a_network() -> None:
    assert changed(graph_of_model("mobilenet_v2")) == []


@pytest.mark.parametrize("masked", [False, True])
def test_attention_written_out(masked: bool) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / 4
        return (scores + mask if masked else scores).softmax(-1) @ v

    x = torch.randn(2, 3, 5, 16)
    graph = graph_of(FunctionModule(attention), x, x.clone(), x.clone(), torch.zeros(5, 5))
    assert changed(graph) == []


def test_a_pass_that_changes_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        name = "wrong"

        def run(self, graph: Graph) -> Graph:
            graph.nodes()[-1].strides = (7,)  # type: ignore[misc]  # that is the test
            return graph

    monkeypatch.setattr("tests.graph.passes.test_nodes_stay.PASSES", (Wrong(),))
    with pytest.raises(FrozenInstanceError):
        changed(graph_of(FunctionModule(torch.relu), torch.randn(3)))


def test_a_pass_that_changes_the_arguments_of_a_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        name = "wrong"

        def run(self, graph: Graph) -> Graph:
            graph.nodes()[-1].args.append(7)  # type: ignore[attr-defined]  # of an extern
            return graph

    monkeypatch.setattr("tests.graph.passes.test_nodes_stay.PASSES", (Wrong(),))
    x = InputNode((), (), f32)
    (text,) = changed(Graph([x], [ExternNode((x,), (), f32, max, [], {}, "a test")]))
    assert text.startswith("wrong: ")
