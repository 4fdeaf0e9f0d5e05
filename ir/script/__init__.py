"""Script: a Python function whose syntax tree is read into IR.

In reading order:

    read           the decorators ``kernel`` and ``script``, and ``build``
    vocabulary     script's own words: loops, buffers, workers, barriers, moves
    statements     statements: each becomes IR, or is executed while building
    expressions    expressions: constants are computed while building, the rest becomes IR
    scope          names and their lifetimes
    source         the syntax tree of a function, and the location of each node

May import: the nodes, the builder and the functions of ``ir``, ``ir.algebra``, ``ir.analysis``, ``ir.isa``,
``ir.verify``, ``ir.errors``, ``ir.util``.
"""
