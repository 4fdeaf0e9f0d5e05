"""Attention on a GPU, by mma.sync or by CUDA cores.

    problem_view   an attention and its operands as a GPU template sees them
    score          a score as scale, product and masks
    products       the two products, and the ownership of their elements
    softmax        the online softmax between them
    template       the loop over tiles of keys
    split_keys     attention whose keys several blocks share

Imports ``ir``, ``schedules.common``, and ``schedules.cuda.{support,matmul}``.
"""
