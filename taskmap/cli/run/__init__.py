"""`taskmap run`: ONNX models and archives."""
