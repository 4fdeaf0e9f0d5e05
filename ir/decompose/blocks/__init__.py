"""Blocks of one kernel: their tiles, and what they do for each other.

In reading order:

    grid         the tiles of blocks
    tiles        the numbers of the tiles of threads
    threads      threads of the whole grid, without tiles of blocks
    sums         the sums that workers share
    walks        the elements of a fold that a thread takes, part after part
    multicast    blocks of a cluster that fetch for each other

May import: the steps, views and refusals of ``ir.decompose``.
"""
