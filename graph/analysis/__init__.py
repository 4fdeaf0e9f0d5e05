"""Analysis: facts derived from compute definitions. Nothing here changes a graph. In reading order:

    classify    the class of an operator: view, injective, contraction, reduction, scatter, recurrence
    access      the elements that a node reads, compared as polynomials
    inlining    the nodes that are recomputed at each read instead of stored
    placement   strides, offsets, and views that share their source's storage
    dequantised  integers of eight bits, less a zero point and times a scale
    size_forms  the normal form of symbolic sizes

May import: ir, and ``build`` and ``nodes`` of graph.
"""
