"""Quantised tensors: integers of eight bits that stand for (value - zero point) · scale.

    products        matrix products, with zero points as corrections
    convolution     convolutions as matrix products

May import: ir, and ``build``, ``nodes`` and ``ops`` of graph.
"""
