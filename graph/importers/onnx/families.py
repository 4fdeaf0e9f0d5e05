"""The families of ONNX operators; importing this file fills the table of lowerings."""

from taskmap.graph.importers.onnx import (
    activations,
    attention,
    classic_trees,
    convolution,
    creation,
    elementwise,
    indexing,
    linear_models,
    matmul,
    ngrams,
    norms,
    pooling,
    quantization,
    ranking,
    recurrent,
    reductions,
    resize,
    scores,
    sequences,
    shapes,
    trees,
    vision,
)
from taskmap.graph.importers.onnx.microsoft.table import FAMILIES as MICROSOFT
from taskmap.graph.importers.onnx.model import Model as Model
from taskmap.graph.importers.onnx.model import Port as Port
from taskmap.graph.importers.onnx.model import load as load

FAMILIES = (
    activations,
    attention,
    classic_trees,
    convolution,
    creation,
    elementwise,
    indexing,
    linear_models,
    matmul,
    ngrams,
    norms,
    pooling,
    quantization,
    ranking,
    recurrent,
    reductions,
    resize,
    scores,
    sequences,
    shapes,
    trees,
    vision,
    *MICROSOFT,
)
"""The files that fill the table of lowerings."""
