"""The files that define ONNX Runtime's operators; importing this one fills the table of contracts."""

from taskmap.graph.importers.onnx.microsoft import (
    attention,
    convolutions,
    experts,
    few_bits,
    fused,
    grouped_attention,
    norms,
    predecessors,
    quantised,
    quantised_products,
)

FAMILIES = (
    attention,
    convolutions,
    experts,
    few_bits,
    fused,
    grouped_attention,
    norms,
    predecessors,
    quantised,
    quantised_products,
)
"""The files that fill the table of contracts."""
