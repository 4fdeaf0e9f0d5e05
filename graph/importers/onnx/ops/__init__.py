"""Lowerings of ONNX operators, one file per family."""
