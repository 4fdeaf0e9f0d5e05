"""Support for GPU schedules.

    launch                  the grid of blocks, and the finished kernel
    vectors                 widths of vector accesses
    one_thread_per_vector   element-wise work: one thread for each work item
    thread_group            threads that reduce together
    tile_partition          a tile divided among threads
    last_block              reductions across blocks

Imports ``ir`` and ``schedules.common``.
"""
