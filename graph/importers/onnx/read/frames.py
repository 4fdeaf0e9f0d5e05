"""The frames with which reading begins: a graph with its stored tensors and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import GraphProto

from taskmap.graph.importers.onnx.read.library import FunctionLibrary
from taskmap.graph.importers.onnx.read.model import Model
from taskmap.graph.importers.onnx.read.protos import array_of, sparse_array
from taskmap.graph.importers.onnx.read.state import Scope
from taskmap.graph.importers.onnx.read.values import Value, of_array


def first_frame(model: Model, inputs: Mapping[str, Value]) -> Scope:
    """The frame of the model's graph with the given inputs."""
    return graph_frame(model.graph, model.library, inputs, (), sees=False)


def graph_frame(
    graph: GraphProto, library: FunctionLibrary, inputs: Mapping[str, Value | None], binds: Sequence[str], sees: bool
) -> Scope:
    """A frame that reads ``graph``."""
    values: dict[str, Value | None] = {}
    for stored in graph.initializer:
        values[stored.name] = of_array(array_of(stored, library.folder), stored.data_type)
    for sparse in graph.sparse_initializer:
        values[sparse.values.name] = of_array(sparse_array(sparse, library.folder), sparse.values.data_type)
    values.update(inputs)
    return Scope(graph.node, [o.name for o in graph.output], binds, values, library, sees)
