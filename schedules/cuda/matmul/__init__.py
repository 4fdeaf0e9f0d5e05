"""Matrix products on a GPU, by mma.sync or by CUDA cores.

    operand          an operand of a contraction: its element type and its memory layout
    problem_view     a product with its operands, and the block's tile with its epilogue
    config           configurations, and their limits by the hardware
    shared_tile      tiles in shared memory without bank conflicts: swizzled or padded
    copy_to_shared   the loader from global to shared memory, through registers or by cp.async
    simt             the multiplier of CUDA cores
    mma              the multiplier of tensor cores
    split_k          sums that several blocks share
    template         the pipelined loop over k-tiles

Imports ``ir``, ``schedules.common`` and ``schedules.cuda.support``.
"""
