"""The graph package: what to compute.

A model arrives as a torch FX graph or an ONNX file, becomes a ``Graph`` of compute definitions, is rewritten by passes
and leaves as a ``Plan``: fused groups, each one a ``Task`` for the schedules package. In reading order:

    nodes      the graph IR: Graph, Node, Origin
    build      helpers from which an operator is defined in a few lines
    ops        the operators, one function each
    quantised  products of integers of eight bits that stand for real numbers
    importers  from torch FX and from ONNX to a Graph
    passes     rewrites from Graph to Graph
    analysis   facts derived from definitions: the class of an operator, its reads, its strides
    fusion     planning: which nodes share a kernel, in which order, and where each value is stored
    extern     calls that PyTorch makes itself
    reference  the semantics: evaluates a Graph in numpy

May import: ir only.
"""
