"""Analyses: provable facts about expressions, tasks and kernels. None of them changes the IR.

In reading order:

    polynomial     integer expressions as polynomials, the normal form of index arithmetic
    simplify       simplification under known ranges of variables
    bounds         intervals, and proofs of inequalities with symbolic sizes
    alignment      the largest power of two that divides an address
    positions      row-major numbers of positions
    contraction    recognising a matmul, a batched one or a convolution in an expression
    windows        rows of its first factor that are equally spaced in memory
    codes          weights that are affine in a code of four bits
    cost           the operations of a task and the bytes it must move
    key            canonical text, by which equal tasks and kernels are found

May import: the nodes of ``ir``, ``ir.algebra``, ``ir.errors``.
"""
