"""Reductions along rows on a GPU, and element-wise work on the rows: softmax, norms, sums, extrema, losses.

    config      the distribution of rows over threads and blocks, and its choice
    walk        the elements of a row that a thread owns, in vectors and chains
    partial     a reduction: what a thread has reduced so far
    kept        values that stay in registers from pass to pass
    template    the passes along a row, and the kernel

Imports ``ir``, ``schedules.common`` and ``schedules.cuda.support``.
"""
