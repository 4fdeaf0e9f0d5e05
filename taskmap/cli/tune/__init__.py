"""`taskmap tune`: measures configurations.

Reading order:

    command     chooses by the first argument: operator, ONNX model or PyTorch function
    parsers     the options
    session     tuning with progress, interruption and report
    function    the operators of a PyTorch model or function
    onnx        the operators of an ONNX model
    estimate    orders configurations by estimates, for the simulator

It may import every package of taskmap; only `cli` imports it.
"""
