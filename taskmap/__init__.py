"""taskmap: a tensor compiler whose schedules are task mappings.

`torch.compile(model, backend="taskmap")` is the main door; the names below are the rest of the public interface.
Importing this package loads neither torch nor onnx nor cuda: each public name loads its module on first use (PEP 562).
"""

import os
from importlib import import_module
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

# In a checkout the rooms ir/, graph/, schedules/ and backend/ stand beside this folder, not in it as when installed.
_checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if all(os.path.exists(os.path.join(_checkout, name)) for name in ("pyproject.toml", "schedules")):
    __path__.append(_checkout)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'taskmap' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
