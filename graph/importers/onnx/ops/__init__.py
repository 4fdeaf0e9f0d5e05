"""Lowerings of the standard's operators, one file per family. In reading order:

    elementwise, activations, reductions, norms  operators on elements, rows and axes
    shapes, indexing, ranking, creation          operators that move, look up, order and create elements
    matmul, convolution, pooling, attention      contractions and windows
    quantization, quantised_products             quantised tensors, and their exact products
    recurrent                                    RNN, GRU and LSTM
    resize (resize_style, resize_symbolic)       resizing, by tables or at symbolic sizes
    sampling, vision, numpy_vision               images: compiled samples, and the operators that numpy runs
    sequences, strings                           sequences and optionals; strings
    symbolic_padding                             padding by symbolic amounts

numpy_vision does not call ``onnx.reference``, which evaluates these operators one element at a time in Python: 12 times
the time of numpy_vision for 1,000 boxes of 20 classes, 20 times for 20 regions, 300 times for 512 samples of a volume
(onnx 1.23). It also fails for a GridSample without elements, and it clamps positions before cubic interpolation with
the padding mode "border", where ONNX Runtime, PyTorch and numpy_vision clamp each neighbour.

May import: ``importers.onnx.read``, ``graph.ops``, ``graph.quantised``, ``graph.build``, ``graph.nodes``, ir and onnx.
"""
