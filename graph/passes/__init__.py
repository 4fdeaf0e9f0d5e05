"""Graph passes: rewrites from Graph to Graph, run in the order of ``PASSES``.

No pass removes dead nodes, because a graph's nodes are those that its outputs reach. In reading order:

    base            what a pass provides, and ``rewrite``
    views           views of views become one view
    casts           pairs of exact conversions cancel
    constants       tensors of one value become numbers
    duplicates      equal nodes are merged
    paddings        borders of zeros become the padding of convolutions
    attention       a written-out attention becomes one operator (attention_scores and elements match it)
    scales          batch normalisation moves into the convolution before it
    concatenations  concatenations in place (growing finds those that contain each other)
    quotients       numbers are quantised without a division; the driver runs it for CPUs
    byte_tables     functions from bytes to bytes are looked up; the driver runs it for CPUs
    integer_sums    products of dequantised tensors are computed with integers; the driver runs it for CPUs
    narrow_weights  weights of few bits are widened inside products of few rows; the driver runs it for CPUs
    shared_keys     single queries of heads that share their keys become one head's; the driver runs it for CPUs
    few_rows        few rows times a transposed matrix that changes, the other way round; the driver runs it for CPUs
    convolutions/   narrow floats as products of tiles, products inside depthwise kernels; the driver runs both for CPUs
    biases          biases are added to sums before these are rounded; the driver runs it for CPUs
    byte_products   products of bytes with the signs that dot products take
    winograd        weights of 3x3 convolutions, transformed for minimal filtering; the driver runs it for a target
    few_channels    images of few channels are filled with zeros; the driver runs it for GPUs
    weight_packing  weights in the order in which templates read them; the driver runs it for a target
    pack_classes    one task that packs or transforms all weights of a size class

May import: ir, ``analysis``, ``fusion.in_place_cat``, and ``build``, ``nodes``, ``ops`` and ``quantised`` of graph.
"""

from __future__ import annotations

from taskmap.graph.nodes import Graph
from taskmap.graph.passes.attention import RecoverAttention
from taskmap.graph.passes.base import GraphPass
from taskmap.graph.passes.casts import FoldCasts
from taskmap.graph.passes.concatenations import ConcatenateInPlace
from taskmap.graph.passes.constants import FoldConstants
from taskmap.graph.passes.duplicates import MergeDuplicates
from taskmap.graph.passes.paddings import FoldPaddings
from taskmap.graph.passes.scales import FoldScales
from taskmap.graph.passes.views import FoldViews
from taskmap.ir.passes import Observer, run_pipeline

PASSES: tuple[GraphPass, ...] = (
    FoldViews(),
    FoldCasts(),
    FoldConstants(),
    MergeDuplicates(),
    FoldPaddings(),
    RecoverAttention(),
    FoldScales(),
    ConcatenateInPlace(),
)


def run_passes(graph: Graph, observe: Observer[Graph] | None = None, *, verify: bool = False) -> Graph:
    """Runs every pass and leaves ``graph`` unchanged; ``observe`` sees each step. ``verify`` checks the conditions of
    every pass."""
    return run_pipeline(PASSES, graph, observe, verify=verify)


__all__ = ["PASSES", "GraphPass", "run_passes"]
