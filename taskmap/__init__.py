"""taskmap: a tensor compiler whose schedules are task mappings.

`torch.compile(model, backend="taskmap")` is the main door; the names below are the rest of the public interface.
Importing this package loads neither torch nor onnx nor cuda: each public name loads its module on first use (PEP 562).
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmap.archive_load import ArchivedModel as ArchivedModel
    from taskmap.archive_load import load as load
    from taskmap.archive_write import compile_onnx as compile_onnx
    from taskmap.building import BuiltKernel as BuiltKernel
    from taskmap.building import build as build
    from taskmap.errors import TaskmapError as TaskmapError
    from taskmap.explaining import explain as explain
    from taskmap.ledger import Metrics as Metrics
    from taskmap.ledger import metrics as metrics
    from taskmap.options import Options as Options
    from taskmap.report import Report as Report
    from taskmap.simulating import Simulation as Simulation
    from taskmap.simulating import simulate as simulate

__version__ = "0.1.0"

_HOME = {
    "ArchivedModel": "taskmap.archive_load",
    "BuiltKernel": "taskmap.building",
    "Metrics": "taskmap.ledger",
    "Options": "taskmap.options",
    "Report": "taskmap.report",
    "Simulation": "taskmap.simulating",
    "TaskmapError": "taskmap.errors",
    "build": "taskmap.building",
    "compile_onnx": "taskmap.archive_write",
    "explain": "taskmap.explaining",
    "load": "taskmap.archive_load",
    "metrics": "taskmap.ledger",
    "simulate": "taskmap.simulating",
}
__all__ = [
    "ArchivedModel", "BuiltKernel", "Metrics", "Options", "Report", "Simulation", "TaskmapError", "__version__",
    "build", "compile_onnx", "explain", "load", "metrics", "simulate",
]  # fmt: skip


class _CheckoutRooms:
    """Finds the packages ir, graph, schedules and backend of a checkout, where they stand beside this folder.

    Nothing else of the checkout belongs to the package: were its root in ``__path__``, a walk over the packages, as
    PyTorch makes for TORCH_LOGS=taskmap, would find this folder again as taskmap.taskmap, without an end.
    """

    names = ("backend", "graph", "ir", "schedules")

    def __init__(self, entry: str) -> None:
        self.root, marker = os.path.split(entry)
        if marker != _MARKER:
            raise ImportError(entry)

    def find_spec(self, fullname: str, target: object = None) -> ModuleSpec | None:
        """The spec of a room; None for any other name."""
        return PathFinder.find_spec(fullname, [self.root]) if fullname.rpartition(".")[2] in self.names else None

    def iter_modules(self, prefix: str = "") -> list[tuple[str, bool]]:
        """The rooms, as pkgutil asks for them: names, and that each is a package."""
        return [(prefix + name, True) for name in self.names]


_MARKER = "<rooms of taskmap>"
_checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if all(os.path.exists(os.path.join(_checkout, name)) for name in ("pyproject.toml", "schedules")):
    sys.path_hooks.append(_CheckoutRooms)
    __path__.append(os.path.join(_checkout, _MARKER))


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'taskmap' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
