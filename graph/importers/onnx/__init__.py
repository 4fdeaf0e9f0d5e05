"""ONNX models into taskmap's graph: opsets 7 and newer, one file for each family of operators."""

from taskmap.graph.importers.onnx import (
    activations,
    attention,
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
    sequences,
    shapes,
    trees,
    vision,
)
from taskmap.graph.importers.onnx.model import Model, Port, load

FAMILIES = (
    activations,
    attention,
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
    sequences,
    shapes,
    trees,
    vision,
)
"""The files that fill the table of lowerings."""

__all__ = ["FAMILIES", "Model", "Port", "load"]
