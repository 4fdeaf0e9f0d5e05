"""Backward operators, each family in the file that has its name among the operators.

    activation   of gelu, silu and their kin
    pooling      gathers: each element sums over the windows that cover it
    resample     gathers: each element sums over the results that read it
    convolution  of the image, a transposed convolution, and of the weights
    attention    of queries, keys and values

May import: ir, ``build`` and ``nodes`` of graph, and the operators.
"""
