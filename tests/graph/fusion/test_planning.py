"""Plans of random graphs: the kernels, run one after another in real storage, compute what the graph defines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.graph.fusion.planning import Group, Plan, plan
from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.passes import PASSES, run_passes
from taskmap.graph.passes.base import rewrite
from taskmap.graph.reference import run
from tests.graph.random_graphs import arrays_for, graphs
from tests.graph.running import run_plan

TOLERANCE = 2e-4


def assert_same(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.abs(b).max(initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale)


@given(graphs(), st.integers(0, 1000))
@settings(max_examples=80)
def test_a_plan_computes_what_the_graph_does(graph: Graph, seed: int) -> None:
    inputs = arrays_for(graph, seed)
    assert_same(run_plan(graph, plan(graph), inputs), run(graph, inputs))


@given(graphs(), st.integers(0, 1000))
@settings(max_examples=80)
def test_passes_and_plan_compute_what_the_graph_does(graph: Graph, seed: int) -> None:
    inputs = arrays_for(graph, seed)
    better = run_passes(graph, verify=True)
    assert_same(run_plan(better, plan(better), inputs), run(graph, inputs))


@given(graphs(), st.integers(0, 1000))
@settings(max_examples=40)
def test_every_pass_keeps_the_results(graph: Graph, seed: int) -> None:
    inputs = arrays_for(graph, seed)
    expected = run(graph, inputs)
    for step in PASSES:
        graph = step.run(graph)
        assert_same(run(graph, inputs), expected)


@given(graphs())
@settings(max_examples=50)
def test_every_value_is_written_once_before_it_is_read(graph: Graph) -> None:
    planned = plan(run_passes(graph))
    written: set[Node] = set()
    for group in groups_of(planned):
        made_here = {part for part in group.inputs if not part.is_compute}
        assert all(n in written or n in made_here or n.attrs.get("in_place") for n in group.inputs)
        assert written.isdisjoint(group.outputs)
        written.update(group.outputs)
        assert [b.dtype for b in group.task.outputs] == [n.dtype for n in group.outputs]
        assert len(group.task.inputs) == len(group.inputs)
        assert sum(n is group.anchor for n in group.nodes) == (group.anchor is not None)


@given(graphs())
@settings(max_examples=50)
def test_what_is_computed_once_depends_on_constants_alone(graph: Graph) -> None:
    constant: set[Node] = {n for i, n in enumerate(graph.inputs) if i in graph.constant_inputs}
    for group in groups_of(plan(graph)):
        if group.once:
            assert all(n in constant or n.is_compute for n in group.inputs)
            constant.update(group.outputs)
            assert all(n in constant or n.attrs.get("in_place") for n in group.inputs)


@given(graphs())
@settings(max_examples=20)
def test_constants_of_a_graph_are_found_once(graph: Graph) -> None:
    assert graph.computed_once() is graph.computed_once()
    unchanged = rewrite(graph, lambda node: node)
    assert unchanged is graph
    without = replace(graph, constant_inputs=frozenset())
    assert not any(isinstance(n, InputNode) for n in without.computed_once())
    assert without.computed_once() <= graph.computed_once()


@given(graphs())
@settings(max_examples=40)
def test_every_refusal_names_a_node_outside_and_a_reason(graph: Graph) -> None:
    for group in groups_of(plan(graph)):
        for node, reason in group.refused:
            assert node not in group.nodes
            assert reason


def groups_of(planned: Plan) -> list[Group]:
    return [s for s in planned.steps if isinstance(s, Group)]
