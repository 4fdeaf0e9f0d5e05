"""Readers of foreign graphs: PyTorch FX and ONNX."""
