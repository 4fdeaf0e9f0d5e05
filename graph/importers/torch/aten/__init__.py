"""Lowerings of ATen operators, one file per family; importing this package fills the table ``ATEN``.

Each file registers functions of ``graph.ops`` under the names of overloads, and adapts arguments where the two differ:

    arithmetic, logic, mathematics, activations    element-wise operators
    views, rearrange, creation                     operators that move elements, and tensors without inputs
    reductions, softmax, norms                     reductions, and the operators built from them
    matmul, convolution, pooling, resample         contractions and windows
    indexing, scatter                              reads and writes at data-dependent positions
    attention, recurrent                           attention, LSTM, GRU and RNN

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
