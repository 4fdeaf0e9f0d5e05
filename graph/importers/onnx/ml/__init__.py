"""Operators of ai.onnx.ml: trees, linear models, n-grams."""
