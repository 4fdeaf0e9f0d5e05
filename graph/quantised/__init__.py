"""Quantised tensors: integers of eight bits that stand for (value - zero point) · scale.

    products        matrix products, with zero points as corrections
    convolution     convolutions as matrix products
    constant_parts  arithmetic on constants in an operator that ends a product

May import: ir, and ``build``, ``nodes``, ``ops`` and ``analysis`` of graph.
"""
