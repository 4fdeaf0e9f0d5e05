"""Schedules for NVIDIA GPUs. A template for each costly anchor, a rule for everything else.

    dispatch         selects the template or rule of a task
    support/         grids, thread groups, vector widths, reductions across blocks
    pointwise        the rule for element-wise work: one thread for each vector
    transpose        its variant through shared memory, if reads and writes conflict in memory order: a strategy
    rows             the rule for reductions along rows: softmax, norms, losses
    row_reciprocal   rewrites a row's divisions by one sum into multiplications
    scatter          updates at positions that are data
    recurrence       RNNs: a block for each sequence
    matmul/          matrix products by mma.sync or CUDA cores
    attention/       attention by mma.sync or CUDA cores
    hopper/          both by TMA and wgmma
    select_attention the choice between both attentions, and of a configuration
    select_matmul    the configurations of a product over all templates, and the estimate that orders them
    tunable_matmul   a matrix product as tuning sees it

Imports ``ir``, ``schedules.common`` and ``schedules.strategies``, never ``schedules.cpu``.
"""
