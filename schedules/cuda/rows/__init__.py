"""Reductions along rows on a GPU, and element-wise work on the rows: softmax, norms, sums, extrema, losses.

    config      the distribution of rows over threads and blocks, and its choice
    partial     a reduction: what a thread has reduced so far
    kept        values that stay in registers from pass to pass
    passes      the passes along a row, as leaves of a strategy
    template    the strategy of the passes, and the kernel

Imports ``ir``, ``schedules.common`` and ``schedules.cuda.support``.
"""
