"""Fusion: which nodes share a kernel, in which order kernels run, and where each value is stored. In reading order:

    groups        the rules: which cluster a node joins, and the reason for each refusal (``explain`` prints it)
    clusters      clusters and the acyclic graph they form
    rows          reductions along contiguous rows
    tails         values that move into the only kernel that reads them
    in_place_cat  concatenations whose inputs are written directly into the result
    planning      from Graph to Plan: groups in running order, and a placement for every value
    tasks         one group as a Task for the schedules package

May import: ir, ``analysis`` and ``nodes``.
"""
