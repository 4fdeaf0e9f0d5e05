"""`taskmap cache`: the tuning cache and the kernel store.

Reading order:

    command     the actions and their options
    common      the database, the conditions here, the selection of records
    records     list, show, best, tune, explain-miss
    maintain    verify, prune, stats, clear, path
    share       export, import, merge, diff
    kernels     the same actions on compiled kernels (--kernels)

It may import every package of taskmap; only `cli` imports it.
"""
