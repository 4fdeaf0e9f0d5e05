"""taskmap: a tensor compiler whose schedules are task mappings.

`torch.compile(model, backend="taskmap")` is the main entry point; the names below are the rest of the public interface.
Importing this package loads neither torch nor onnx nor cuda: each public name loads its module on first use (PEP 562).

    ir/ graph/ schedules/ backend/    the rooms below (docs/architecture.md)
    options, errors                   options of a compilation, and every error
    compile/                          the driver: from a captured graph to a callable
    calls/                            calls of compiled graphs, with the tensors of any library
    targets/                          the CPU, GPUs and the simulator behind one interface
    torch_backend                     the backend of torch.compile
    onnx/                             ONNX models
    kernels/, decompose               single kernels, and schedules as values
    archive/                          compiled models as files
    tuning/, trust/                   measured configurations, tested compilers
    report/                           explain: reports and pages
    cli/                              the command line
    util/                             helpers that know nothing of the stages

May import everything.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmap.archive.load import ArchivedModel as ArchivedModel
    from taskmap.archive.load import load as load
    from taskmap.archive.write import compile_onnx as compile_onnx
    from taskmap.errors import TaskmapError as TaskmapError
    from taskmap.kernels.build import BuiltKernel as BuiltKernel
    from taskmap.kernels.build import build as build
    from taskmap.kernels.function import KernelFunction as KernelFunction
    from taskmap.kernels.function import kernel as kernel
    from taskmap.kernels.simulate import Simulation as Simulation
    from taskmap.kernels.simulate import simulate as simulate
    from taskmap.options import Options as Options
    from taskmap.report.explain import explain as explain
    from taskmap.report.presentation import Report as Report
    from taskmap.util.metrics import Metrics as Metrics
    from taskmap.util.metrics import metrics as metrics

__version__ = "0.1.0"
"""The version of this package."""

_HOME = {
    "ArchivedModel": "taskmap.archive.load",
    "BuiltKernel": "taskmap.kernels.build",
    "KernelFunction": "taskmap.kernels.function",
    "Metrics": "taskmap.util.metrics",
    "Options": "taskmap.options",
    "Report": "taskmap.report.presentation",
    "Simulation": "taskmap.kernels.simulate",
    "TaskmapError": "taskmap.errors",
    "build": "taskmap.kernels.build",
    "compile_onnx": "taskmap.archive.write",
    "explain": "taskmap.report.explain",
    "kernel": "taskmap.kernels.function",
    "load": "taskmap.archive.load",
    "metrics": "taskmap.util.metrics",
    "simulate": "taskmap.kernels.simulate",
}
__all__ = [
    "ArchivedModel", "BuiltKernel", "KernelFunction", "Metrics", "Options", "Report", "Simulation", "TaskmapError",
    "__version__", "build", "compile_onnx", "explain", "kernel", "load", "metrics", "simulate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'taskmap' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
