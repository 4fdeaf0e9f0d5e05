"""Support for GPU schedules.

    launch              the grid of blocks, their sizes, and the finished kernel
    vectors             widths of vector accesses
    tile_partition      a tile divided among threads
    last_block          reductions across blocks, of which the last goes on
    cluster_reduction   reductions across the blocks of a cluster, which all go on

Imports ``ir`` and ``schedules.common``.
"""
