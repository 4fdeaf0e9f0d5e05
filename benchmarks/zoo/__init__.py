"""Trained and exported ONNX models, each run against ONNX Runtime: ``python -m benchmarks zoo``.

    published    trained models that published packages carry
    networks     networks of our own, exported by PyTorch
    variants     quantised, half-precision and optimised forms of exported networks
    entries      the list of models, and how each is called
    __main__     the benchmark

May import: ``benchmarks.support``, ``taskmap``.
"""
