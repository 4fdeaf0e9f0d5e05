"""ONNX models from Python."""
