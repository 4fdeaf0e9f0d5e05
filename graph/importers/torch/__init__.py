"""The PyTorch importer: an FX graph of ATen operators becomes a Graph. In reading order:

    fx              the reader: one lowering per operator, or an extern node that PyTorch runs
    table           the table of lowerings, which the package ``aten`` fills, one file per family
    types           element types, and the tensors that taskmap cannot hold
    empty_tensors   guards that tensors have elements
    symbols         symbolic sizes as expressions over size variables
    storage         the tensor behind a chain of views, for operators that address storage
    homes           storage that results share in PyTorch, for values that the caller gets
    origin          the user's line for each node
    results         the results of an operator that a graph reads
    mixed_norms     normalisations of narrow floats with parameters of f32, on CPUs
    quantised       the operators of PyTorch's export quantisation, in terms of ATen
    gpu_attention   PyTorch's attentions of GPUs, as its attention of CPUs
    long_attention  attention in training whose scores exceed the caches, left to PyTorch on CPUs
    decompositions  the ATen operators that AOTAutograd decomposes before the graph arrives

May import: ir, ``analysis.inlining``, ``ops``, ``quantised``, ``extern`` and ``nodes`` of graph, and torch.
"""
