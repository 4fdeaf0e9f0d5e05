"""ONNX models into taskmap's graph: opsets 7 and newer, one file for each family of operators.

The names load on first use, and with them the families: importing a package loads no framework.
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
