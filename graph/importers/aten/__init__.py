"""Lowerings of ATen operators, one family a file; importing this package fills the table."""

from taskmap.graph.importers.aten import (
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
    reductions,
    resample,
    scatter,
    softmax,
    views,
)
from taskmap.graph.importers.table import ATEN

__all__ = [
    "ATEN",
    "activations",
    "arithmetic",
    "attention",
    "convolution",
    "creation",
    "indexing",
    "logic",
    "mathematics",
    "matmul",
    "norms",
    "pooling",
    "rearrange",
    "reductions",
    "resample",
    "scatter",
    "softmax",
    "views",
]
