"""The ONNX reader: a model file becomes values and graphs, one operator after another. In reading order:

    model, lacking, ordering, protos  the file: checked, nodes sorted, tensors and attributes decoded
    library                           the versions, functions and definitions that nodes refer to
    elements, values                  element types, and the values on the edges of a graph
    call, table                       the call that a lowering receives, and the table of lowerings
    typing_rules                      types of inputs and results
    state, frames                     the stack of graphs being read
    reader                            the loop that reads operators until a value must be computed first
    control                           If, Loop and Scan
    function_bodies, composition      an operator's definition by other operators
    assumptions, symbolic             symbolic sizes: decisions about them, and the operators that accept them
    shape_values, ratios, size_names  arithmetic on symbolic sizes, and names for long ones
    folding                           values that do not depend on inputs
    new_nodes                         the nodes that operators add: names for sizes, no tensors without elements
    host                              operators that numpy runs

Types and shapes are not left to ``onnx.shape_inference``: in its strict mode (onnx 1.23) it accepts a sum of f32 and
i64 and an attribute that the operator lacks, and a shape computed from symbolic sizes becomes unknown. Functions are
not expanded by ``onnx.inliner``: it knows only those of the model, while ``function_bodies`` also takes an operator's
definition by the standard, which depends on the types of its inputs; both are read by the same stack of frames.

May import: ``importers.onnx.contract``, ``importers.torch.types``, ``analysis``, ``ops``,
``build``, ``extern``, ``nodes`` and ``reference`` of graph, ir, onnx and torch.
"""
