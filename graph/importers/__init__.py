"""Importers: models of other frameworks become Graphs.

    torch  FX graphs of ATen operators
    onnx   ONNX files

The two share only ``torch.types``. May import: ir, ``analysis``, ``ops``, ``quantised``, ``build``, ``extern``,
``nodes`` and ``reference`` of graph; torch and onnx where they are used.
"""
