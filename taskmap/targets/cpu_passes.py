"""The graph passes of a CPU, which arrange operators and weights as its templates read them."""

from __future__ import annotations

from functools import partial

from taskmap.graph.passes import GraphPass
from taskmap.graph.passes.biases import AddBiases
from taskmap.graph.passes.byte_tables import TabulateBytes
from taskmap.graph.passes.convolutions.expansions import JoinExpansions
from taskmap.graph.passes.convolutions.products import MultiplyConvolutions
from taskmap.graph.passes.few_rows import MultiplyFewRows
from taskmap.graph.passes.integer_sums import IntegerSums
from taskmap.graph.passes.narrow_weights import NarrowWeights
from taskmap.graph.passes.quotients import MultiplyByReciprocals
from taskmap.graph.passes.shared_keys import GroupQueries
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.graph.passes.winograd import TransformWeights
from taskmap.ir.target import CpuTarget
from taskmap.schedules import (
    choose_expansion,
    choose_form,
    copies_columns,
    multiplies_pairs,
    packed_filled,
    packed_together,
    packed_width,
    packed_with_signs,
    widened_width,
)


def cpu_passes(target: CpuTarget, *, winograd: bool = True, pack: bool = True) -> tuple[GraphPass, ...]:
    """The passes for ``target``, in order.

    Numbers are quantised without divisions, functions of bytes looked up. Dequantised tensors are multiplied as
    integers, and few rows with weights as narrow as they are stored. Single queries that share their keys become one
    head's. With ``pack``, few rows times a transposed matrix that is not constant are multiplied the other way round;
    convolutions of floats of which an instruction multiplies several at a time are products, and biases are added to
    sums of narrow floats before these are rounded; products that only a depthwise convolution reads join its kernel
    where that is faster; with ``winograd``, weights of convolutions that minimal filtering computes faster are
    transformed; the others are packed in panels as wide as the target's micro-kernels, and in groups that its
    instructions multiply.
    """
    fused = "fma" in target.features
    quotients = (MultiplyByReciprocals(),) if fused else ()
    narrow = NarrowWeights(partial(widened_width, target=target), fused, multiplies_pairs(target))
    first = (*quotients, TabulateBytes(), IntegerSums(), narrow, GroupQueries(target.cores))
    if not pack:
        return first
    products = (MultiplyConvolutions(partial(packed_together, target=target)), AddBiases())
    transform = (TransformWeights(partial(choose_form, target=target)),) if winograd else ()
    packing = PackWeights(
        partial(packed_width, target=target),
        together=partial(packed_together, target=target),
        filled=partial(packed_filled, target=target),
        any_signs=partial(packed_with_signs, target=target),
        copies=partial(copies_columns, target=target),
    )
    expansions = (JoinExpansions(partial(choose_expansion, target=target)),)
    return *first, MultiplyFewRows(), *products, *expansions, *transform, packing
