"""The value of what does not depend on inputs, computed by numpy while a model is read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taskmap.graph.extern import call_extern
from taskmap.graph.graph import Graph, Node, topological
from taskmap.graph.importers.onnx.elements import STRING, from_held, from_torch, to_torch
from taskmap.graph.importers.onnx.values import Tensor
from taskmap.graph.reference import run
from taskmap.ir.construct import constant_dim
from taskmap.ir.nodes import Expr

Array = NDArray[Any]
LARGEST = 1 << 22
"""Values of more elements than this are not computed while reading."""


def depends_on(node: Node) -> list[Node]:
    """The inputs of the graph that ``node`` is computed from."""
    return [n for n in topological([node]) if n.op == "input"]


def evaluate_constant(node: Node) -> Array | None:
    """The value of ``node`` in the type that holds it, or None where it depends on inputs or is large."""
    if node.op == "constant":
        return from_torch(node.attrs["value"])  # type: ignore[arg-type]  # constants of a model are tensors
    nodes = topological([node])
    if any(n.op in ("input", "symint") for n in nodes):
        return None
    work = 0
    for n in nodes:
        count = 1
        for size in n.shape:
            known = constant_dim(size)
            if known is None:
                return None
            count *= known
        work += count if n.op != "constant" else 0
    if work > LARGEST:
        return None
    (value,) = run(Graph([], [node]), [], run_extern)
    return held_form(np.asarray(value), node)


def held_form(value: Array, node: Node) -> Array:
    """A value as ``graph.reference`` gives it, in the form of ``elements``: bf16 in its own type."""
    return value.astype(ml_dtypes.bfloat16) if node.dtype.name == "bf16" else value


def run_extern(node: Node, arguments: list[Any], size: Any) -> Any:
    """An operator that runs on the host, for ``graph.reference.run``."""
    tensors = []
    for source, value in zip(node.inputs, arguments, strict=True):
        tensors.append(to_torch(np.array(held_form(np.asarray(value), source))))

    def number(e: Expr) -> int | float:
        found: int | float = size(e)
        return found

    result = call_extern(node, tensors, number)
    if isinstance(result, (list, tuple)):
        return [_reference_form(from_torch(t)) for t in result]
    return _reference_form(from_torch(result))  # type: ignore[arg-type]  # host operators return tensors


def _reference_form(value: Array) -> Array:
    return value.astype(np.float32) if value.dtype == ml_dtypes.bfloat16 else value


def fold(tensor: Tensor) -> Array | None:
    """The value of a tensor if it does not depend on inputs; it is computed at most once."""
    if tensor.known is None and tensor.made is not None:
        value = evaluate_constant(tensor.made)
        if value is None:
            return None
        tensor.known = from_held(value, tensor.elem)
    if tensor.known is not None and tensor.known.dtype == object and tensor.elem != STRING:
        return None
    return tensor.known
