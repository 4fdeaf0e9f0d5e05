"""Networks with sizes left open, as ONNX files: is there one graph for all their sizes?"""
