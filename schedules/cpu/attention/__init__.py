"""Attention on a CPU: one pass over keys and values per block of queries.

    template      the parallel loop over heads and blocks of queries
    query_block   one block of queries against a block of keys: both products and the online softmax
    few_queries   the same of few queries, which read keys in place
    packed_block  the same with keys and values packed in groups
    tile_block    its products on tile registers
    dot_block     its products on dot products of neighbours
    config        configurations: validity, default, space
    cost          their cost model
    problem       attention as tuning sees it

Imports ``ir``, ``schedules.common``, and the microkernels of ``schedules.cpu.matmul``.
"""
