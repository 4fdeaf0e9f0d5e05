"""The files that define ONNX Runtime's operators; importing this one fills the table of contracts."""

from taskmap.graph.importers.onnx.microsoft import (
    attention,
    convolutions,
    experts,
    few_bits,
    fused,
    gates,
    grouped_attention,
    linear_attention,
    norms,
    predecessors,
    quantised,
    quantised_products,
    refused,
    various,
)

FAMILIES = (
    attention,
    convolutions,
    experts,
    few_bits,
    fused,
    gates,
    grouped_attention,
    linear_attention,
    norms,
    predecessors,
    quantised,
    quantised_products,
    refused,
    various,
)
"""The files that fill the tables of contracts and refusals."""
