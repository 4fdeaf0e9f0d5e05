"""Matrix products on a GPU, by mma.sync or by CUDA cores.

    operand          an operand of a contraction: its element type and its memory layout
    problem_view     a product with its operands, and the block's tile with its epilogue
    config           configurations, and their limits by the hardware
    shared_tile      tiles in shared memory without bank conflicts: swizzled or padded
    copy_to_shared   the loader from global to shared memory, through registers or by cp.async
    strategy         the decomposition of a product, by CUDA cores or by tensor cores
    split_k          sums that several blocks share
    template         the limits of a configuration by the product, and the kernel

Imports ``ir``, ``schedules.common`` and ``schedules.cuda.support``.
"""
