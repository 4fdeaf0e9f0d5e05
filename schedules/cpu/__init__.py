"""Schedules for the CPU. A template for each costly anchor, a rule for everything else.

    support/       cycle rates, load balance, and the end of every kernel
    pointwise      the rule for element-wise work: one vectorised parallel loop nest
    transpose      its variant in square tiles, if reads and writes conflict in memory order
    reduce         a loop along a row that reduces and stores on the way
    rows           the rule for reductions along rows: softmax, norms, losses
    scan           prefix sums and products
    scatter        updates at positions that are data
    recurrence     RNNs: a loop over steps
    matmul/        matrix products; dot_tile is their microkernel on dot products of bf16
    convolution/   direct convolution, depthwise convolution, weight gradients
    winograd/      3×3 convolutions by minimal filtering
    attention/     attention in blocks of queries and keys
    tunable        the templates with tunable configurations

Imports ``ir`` and ``schedules.common``, never ``schedules.cuda``.
"""
