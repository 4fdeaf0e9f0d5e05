"""Lowerings of the standard's operators, one file per family. In reading order:

    elementwise, activations, reductions, norms  operators on elements, rows and axes
    shapes, indexing, ranking, creation          operators that move, look up, order and create elements
    matmul, convolution, pooling, attention      contractions and windows
    quantization                                 quantised tensors, with exact products of small integers
    recurrent                                    RNN, GRU and LSTM
    resize (resize_style, resize_symbolic)       resizing, by tables or at symbolic sizes
    sampling, vision, numpy_vision               images: compiled samples, and the operators that numpy runs
    sequences                                    sequences and optionals
    symbolic_padding                             padding by symbolic amounts

May import: ``importers.onnx.read``, ``graph.ops``, ``graph.build``, ``graph.nodes``, ir and onnx.
"""
