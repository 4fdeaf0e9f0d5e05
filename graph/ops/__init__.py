"""Operators as compute definitions with PyTorch's semantics. Each is a function from nodes to nodes; importers call it.

No operator declares its class: whether it fuses follows from its expression (``analysis.classify``). In reading order:

    promotion, pointwise        the common type of operands, and the form of every element-wise operator
    arithmetic, logic           sums, products, comparisons, choices
    activations                 relu, gelu and their kin
    views, rearrange, join      operators that move elements: reshape, permute, slices; flip, pad; cat, stack
    creation                    tensors without inputs
    reductions, softmax, norms  reductions, and the operators built from them
    matmul, convolution         contractions
    pooling, resample           windows and interpolation
    gather, scatter             reads and writes at data-dependent positions
    attention, recurrent        attention, LSTM, GRU and RNN, one operator each
    gradients/                  the backward operators, by family

May import: ir, ``analysis.size_forms``, and ``build`` and ``nodes`` of graph.
"""
