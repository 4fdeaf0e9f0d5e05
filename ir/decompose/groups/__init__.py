"""Groups of threads that reduce together.

    thread_group    their numbers, and how they combine values: lanes by shuffles, warps through shared memory
    fold            the leaf of a sum whose elements only its author knows

May import: the levels of ``ir.decompose``.
"""
