"""Lowerings of ATen operators, one file per family; importing this package fills the table ``ATEN``.

Each file registers functions of ``graph.ops`` under the names of overloads, and adapts arguments where the two differ.

May import: ``importers.torch.table``, ``graph.ops``, ``graph.quantised``, ``graph.nodes`` and ir.
"""

from taskmap.graph.importers.torch.aten import (
    activations,
    arithmetic,
    attention,
    convolution,
    creation,
    indexing,
    logic,
    mathematics,
    matmul,
    norms,
    pooling,
    rearrange,
    recurrent,
    reductions,
    resample,
    scatter,
    softmax,
    views,
)
from taskmap.graph.importers.torch.table import ATEN

__all__ = [
    "ATEN", "activations", "arithmetic", "attention", "convolution", "creation", "indexing", "logic", "mathematics",
    "matmul", "norms", "pooling", "rearrange", "recurrent", "reductions", "resample", "scatter", "softmax", "views",
]  # fmt: skip
