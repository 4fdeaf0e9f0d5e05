"""Tasks from operators of the graph, so that schedules are tested on the definitions found in models."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from taskmap.graph.analysis.placement import Placement
from taskmap.graph.fusion.tasks import build_task
from taskmap.graph.nodes import Graph, InputNode, Node, topological
from taskmap.graph.ops import arithmetic, matmul, norms, views
from taskmap.graph.ops.convolution import add_channel_bias
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Dim
from taskmap.ir.task import Task
from taskmap.ir.types import DType, f32

Strides = tuple[Dim, ...]


def tensor(*shape: Dim, dtype: DType = f32) -> Node:
    """An input of the graph."""
    return InputNode((), shape, dtype)


def permuted_strides(shape: Sequence[Dim], order: Sequence[int]) -> Strides:
    """Strides of a dense tensor whose axes lie in memory in ``order``, the contiguous one last."""
    steps = row_major_strides(tuple(shape[d] for d in order))
    return tuple(steps[order.index(d)] for d in range(len(shape)))


def channels_last(*shape: Dim) -> Strides:
    """Strides of [n, c, ...] with the channels innermost in memory."""
    return permuted_strides(shape, (0, *range(2, len(shape)), 1))


def fused(
    outputs: Sequence[Node],
    anchor: Node | None = None,
    strides: Mapping[Node, Strides] | None = None,
    inputs: Sequence[Node] | None = None,
    name: str = "fused",
) -> Task:
    """One task of everything that ``outputs`` need. ``inputs`` fixes the order of its inputs (default: the order of
    first use); tensors are row-major unless ``strides`` says otherwise."""
    nodes = topological(outputs)
    read = [n for n in nodes if not n.is_compute] if inputs is None else list(inputs)
    given = strides or {}
    places = {n: Placement(n, given.get(n, row_major_strides(n.shape)), 0) for n in dict.fromkeys((*read, *outputs))}
    return build_task(name, [n for n in nodes if n.is_compute], read, outputs, places, anchor)


def random_epilogue(
    chance: random.Random, x: Node, y: Node, channels: int, activate: Callable[[Node], Node]
) -> tuple[list[Node], dict[Node, Strides]]:
    """The outputs of a random chain behind a convolution ``y`` of ``x``, and the strides of some tensors."""
    z = y
    if chance.random() < 0.6:
        z = add_channel_bias(z, tensor(channels))
    if chance.random() < 0.5:
        z = activate(z)
    if chance.random() < 0.3:
        z = arithmetic.add(z, tensor(*y.shape))
    outputs = [z] if chance.random() < 0.8 or z is y else [y, z]
    return outputs, {n: channels_last(*n.shape) for n in (x, *outputs) if chance.random() < 0.7}


def packed(node: Node, pack: PackWeights) -> Node:
    """``node`` with its second operand packed as a constant weight; the packed weight becomes an input."""
    inputs = [n for n in topological([node]) if isinstance(n, InputNode)]
    graph = Graph(inputs, [node], constant_inputs=frozenset([[n is node.inputs[1] for n in inputs].index(True)]))
    (done,) = pack.run(graph).outputs
    assert done is not None
    weight = done.inputs[1]
    if weight.op != "pack":
        return node  # too small to benefit
    return replace(done, inputs=(done.inputs[0], tensor(*weight.shape, dtype=weight.dtype), *done.inputs[2:]))


def matrix_product(form: str, m: Dim, n: Dim, k: Dim, dtype: DType, batch: Dim = 3) -> Node:
    """A product of new matrices: "plain", "left", "right" or "both" with these operands transposed, or "batched"."""
    if form == "batched":
        return matmul.bmm(tensor(batch, m, k, dtype=dtype), tensor(batch, k, n, dtype=dtype))
    a = tensor(m, k, dtype=dtype) if form not in ("left", "both") else views.permute(tensor(k, m, dtype=dtype), (1, 0))
    b = tensor(k, n, dtype=dtype) if form not in ("right", "both") else views.permute(tensor(n, k, dtype=dtype), (1, 0))
    return matmul.mm(a, b)


def layer_norm(x: Node, count: int, statistics: bool = False) -> list[Node]:
    """A norm over the last ``count`` dimensions, with new weights, and its intermediate results."""
    last = x.shape[len(x.shape) - count :]
    w, b = tensor(*last, dtype=x.dtype), tensor(*last, dtype=x.dtype)
    y, mean, rstd = norms.layer_norm(x, last, w, b, 1e-5)
    return [y, mean, rstd] if statistics else [y]
