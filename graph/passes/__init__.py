"""The passes from graph to graph, in order. Dead nodes need no pass: a graph's nodes are those its outputs reach."""

from __future__ import annotations

from taskmap.graph.nodes import Graph
from taskmap.graph.passes.attention import RecoverAttention
from taskmap.graph.passes.base import GraphPass
from taskmap.graph.passes.casts import FoldCasts
from taskmap.graph.passes.concatenations import ConcatenateInPlace
from taskmap.graph.passes.constants import FoldConstants
from taskmap.graph.passes.duplicates import MergeDuplicates
from taskmap.graph.passes.scales import FoldScales
from taskmap.graph.passes.views import FoldViews
from taskmap.ir.passes import Observer, run_pipeline

PASSES: tuple[GraphPass, ...] = (
    FoldViews(),
    FoldCasts(),
    FoldConstants(),
    MergeDuplicates(),
    RecoverAttention(),
    FoldScales(),
    ConcatenateInPlace(),
)


def run_passes(graph: Graph, observe: Observer[Graph] | None = None, *, verify: bool = False) -> Graph:
    """The graph after every pass, the given one unchanged; ``observe`` sees each step. ``verify``: the conditions of
    every pass are checked."""
    return run_pipeline(PASSES, graph, observe, verify=verify)


__all__ = ["PASSES", "GraphPass", "run_passes"]
