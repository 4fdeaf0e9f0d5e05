"""ONNX Runtime's own operators (com.microsoft), which its optimiser and its quantisation tools write.

Each is composed of standard operators, so sizes, fusion and types follow from theirs; ContribOperators.md of ONNX
Runtime is the source. Read ``contract.py`` and ``composition.py`` beside this folder first, then ``fused.py``.
"""

from taskmap.graph.importers.onnx.microsoft import (
    attention,
    convolutions,
    few_bits,
    fused,
    grouped_attention,
    norms,
    quantised,
    quantised_products,
)

FAMILIES = (attention, convolutions, few_bits, fused, grouped_attention, norms, quantised, quantised_products)
"""The files that fill the table of contracts."""

__all__ = ["FAMILIES"]
