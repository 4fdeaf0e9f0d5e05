"""The verifier: a table of rules that hold for every kernel, before and after every pass.

In reading order:

    rules           the table, and ``verify``
    violation       the report of one rule
    types           types, vector widths and ranks of single nodes
    structure       definitions and uses, loops, barriers, workers, the form after lowering
    instructions    operands of invoked instructions, and the threads that execute one together
    bounds          accesses inside their buffers, by interval analysis

May import: the nodes, the printer and the visitors of ``ir``, ``ir.analysis``, ``ir.isa``, ``ir.passes``
(for the type of a step), ``ir.errors``.
"""
