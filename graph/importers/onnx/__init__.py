"""The ONNX importer: models of opset 7 and newer become Graphs.

    read       the reader: files, shapes, constants, control flow, and the call that an operator's lowering receives
    ops        the standard's operators, one file per family
    ml         operators of ai.onnx.ml: trees, linear models, n-grams
    microsoft  ONNX Runtime's own operators, composed of standard ones
    contract   operators outside the standard: their parameters, and definitions by standard operators
    families   imports all of them, which fills the table of lowerings
    strings    numbers for strings at run time

The names below load on first use, and the families with them: importing this package loads no framework.

May import: ir, ``analysis``, ``ops``, ``quantised``, ``importers.torch.types``, ``build``, ``extern``, ``nodes`` and
``reference`` of graph, and onnx.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmap.graph.importers.onnx.families import FAMILIES as FAMILIES
    from taskmap.graph.importers.onnx.families import Model as Model
    from taskmap.graph.importers.onnx.families import Port as Port
    from taskmap.graph.importers.onnx.families import load as load

__all__ = ["FAMILIES", "Model", "Port", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("taskmap.graph.importers.onnx.families"), name)
