"""ONNX Runtime's own operators (com.microsoft), which its optimiser and its quantisation tools write.

Each is composed of standard operators, so sizes, fusion and types follow from theirs; ContribOperators.md of ONNX
Runtime is the source. Read ``contract.py`` and ``composition.py`` beside this folder first, then ``fused.py``;
``table.py`` lists the files.
"""
