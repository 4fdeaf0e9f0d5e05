"""The passes from graph to graph, in order. Dead nodes need no pass: a graph's nodes are those its outputs reach."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.graph.nodes import Graph
from taskmap.graph.passes.attention import RecoverAttention
from taskmap.graph.passes.base import GraphPass
from taskmap.graph.passes.casts import FoldCasts
from taskmap.graph.passes.concatenations import ConcatenateInPlace
from taskmap.graph.passes.constants import FoldConstants
from taskmap.graph.passes.duplicates import MergeDuplicates
from taskmap.graph.passes.scales import FoldScales
from taskmap.graph.passes.views import FoldViews

PASSES: tuple[GraphPass, ...] = (
    FoldViews(),
    FoldCasts(),
    FoldConstants(),
    MergeDuplicates(),
    RecoverAttention(),
    FoldScales(),
    ConcatenateInPlace(),
)


def run_passes(graph: Graph, observe: Callable[[str, Graph], None] | None = None) -> Graph:
    """The graph after every pass, the given one unchanged; ``observe(pass name, graph)`` is called after each."""
    for step in PASSES:
        graph = step.run(graph)
        if observe is not None:
            observe(step.name, graph)
    return graph


__all__ = ["PASSES", "GraphPass", "run_passes"]
