"""Networks with open sizes, as ONNX files: tests for one graph for all their sizes."""
