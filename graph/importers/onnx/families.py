"""The families of ONNX operators; importing this file fills the table of lowerings."""

from taskmap.graph.importers.onnx.microsoft.table import FAMILIES as MICROSOFT
from taskmap.graph.importers.onnx.ml import (
    categories,
    classic_trees,
    linear_models,
    maps,
    ngrams,
    scores,
    trees,
    vector_machines,
)
from taskmap.graph.importers.onnx.ops import (
    activations,
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    matmul,
    norms,
    pooling,
    quantised_products,
    quantization,
    ranking,
    recurrent,
    reductions,
    resize,
    sequences,
    shapes,
    strings,
    vision,
)
from taskmap.graph.importers.onnx.read.model import Model as Model
from taskmap.graph.importers.onnx.read.model import Port as Port
from taskmap.graph.importers.onnx.read.model import load as load

FAMILIES = (
    activations, attention, categories, classic_trees, convolution, creation, elementwise, indexing, linear_models,
    maps, matmul, ngrams, norms, pooling, quantised_products, quantization, ranking, recurrent, reductions, resize,
    scores, sequences, shapes, strings, trees, vector_machines, vision, *MICROSOFT,
)  # fmt: skip
"""The files that fill the table of lowerings."""
