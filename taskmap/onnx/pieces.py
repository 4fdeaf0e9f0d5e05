"""Pieces of an ONNX model's graph for the driver, on any target: its constants, and the memory that results share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.compile.sharing import Aliases
from taskmap.graph.nodes import ConstantNode, Graph
from taskmap.ir.errors import GraphError


def aliases_of(graph: Graph) -> Aliases:
    """No result shares memory with another one or with an input."""
    return Aliases(tuple(range(len(graph.inputs))), tuple(("result", i) for i in range(len(graph.outputs))))


def constant_of(node: ConstantNode) -> NDArray[Any]:
    """The array of a constant. Raises GraphError for a value of another kind."""
    if not isinstance(node.value, np.ndarray):
        raise GraphError(f"the constant {node!r} is not an array")
    return node.value
