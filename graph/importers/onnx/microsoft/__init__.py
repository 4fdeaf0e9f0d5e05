"""ONNX Runtime's own operators (com.microsoft), which its optimiser and its quantisation tools write.

Each is composed of standard operators, so sizes, fusion and types follow from theirs. Source: ContribOperators.md of
ONNX Runtime. The notation and the table of contracts are in ``importers.onnx.contract``, the function body that a
definition builds in ``importers.onnx.read.composition``. In reading order:

    fused                          activations and products
    convolutions, norms            convolutions with an activation or in NHWC; normalisations
    attention, grouped_attention   attention with masks, caches and rotation
    quantised, quantised_products  operators on quantised tensors
    few_bits                       weights of two, four and eight bits
    experts                        mixtures of experts
    gates, linear_attention        gates and norms of branches; attention by a state
    various                        distances, samples, hashes, tokens
    predecessors                   operators that the standard took over
    refused                        the operators that are not read, and why
    table                          imports all of them, which fills the table of contracts

May import: ``importers.onnx.read``, ``graph.build``, ``graph.quantised``, ir and onnx.
"""
