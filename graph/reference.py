"""The semantics of a graph: evaluates every node's compute definition in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from taskmap.graph.nodes import ConstantNode, ExternNode, Graph, ItemNode, Node, SizeNode
from taskmap.ir.errors import GraphError, InputError
from taskmap.ir.interp.definitions import Array, convert, evaluate, size_of
from taskmap.ir.nodes import Expr, Var
from taskmap.ir.types import FLOAT8, bf16

__all__ = ["run"]

Extern = Callable[[ExternNode, list[Any], Callable[[Expr], int | float]], Any]
"""Runs an extern node on its inputs; the third argument evaluates a symbolic size."""


def run(graph: Graph, inputs: Sequence[Any], extern: Extern | None = None) -> list[Any]:
    """The outputs of ``graph``: arrays, numbers for symbolic sizes, None where it returns None.

    ``inputs`` are arrays, and integers where the graph takes sizes. Raises GraphError at an extern node when ``extern``
    is missing, and InputError for a wrong number of inputs.
    """
    if len(inputs) != len(graph.inputs):
        raise InputError(f"the graph takes {len(graph.inputs)} inputs, not {len(inputs)}")
    dims = dimensions(graph, inputs)
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes():
        if node not in values:
            values[node] = node_value(node, [values[n] for n in node.inputs], dims, extern)
    return [None if n is None else values[n] for n in graph.outputs]


def dimensions(graph: Graph, inputs: Sequence[Any]) -> dict[Var, int]:
    """The values of the symbolic sizes for these inputs."""
    return {var: _found(place, inputs) for var, place in graph.dims.items()}


def _found(place: tuple[object, ...], inputs: Sequence[Any]) -> int:
    match place:
        case ("input", int(i)):
            return int(inputs[i])
        case ("size", int(i), int(d)):
            return int(inputs[i].shape[d])
        case ("line", int(slope), int(start), *inner):
            return max(slope * _found(tuple(inner), inputs) + start, 1)
    raise GraphError(f"{place!r} is not a place")


def node_value(node: Node, arguments: list[Any], dims: Mapping[Var, int], extern: Extern | None) -> Any:
    """The value of one node, given the values of its inputs. Raises GraphError as ``run`` does."""
    if node.define is not None:
        return evaluate(node.define, arguments, dims)
    if isinstance(node, ConstantNode):
        return array_of(node.value, node)
    if isinstance(node, ItemNode):
        return arguments[0][node.index]
    if isinstance(node, SizeNode):
        return _size(node.size, dims)
    if isinstance(node, ExternNode) and extern is not None:
        return extern(node, arguments, lambda e: _size(e, dims))
    raise GraphError(f"{node!r} has no definition, and no function was given that runs it")


def _size(expr: object, dims: Mapping[Var, int]) -> int | float:
    if isinstance(expr, Expr):
        return size_of(expr, dims)
    if isinstance(expr, (int, float)):
        return expr
    raise GraphError(f"{expr!r} is not a size")


def array_of(value: Any, node: Node) -> Array:
    """A constant as an array: a numpy array of an own type as it is, or a tensor converted by its ``numpy`` method."""
    if isinstance(value, np.ndarray):
        return value if node.dtype != bf16 else convert(value, bf16)
    if node.dtype in (bf16, *FLOAT8):
        return convert(np.asarray(value.float().numpy()), node.dtype)
    return np.asarray(value.numpy())
