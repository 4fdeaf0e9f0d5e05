"""Log output of a compilation.

TORCH_LOGS="taskmap" prints one line for each graph and each fallback. TORCH_LOGS="+taskmap" adds graphs, plans with
the reasons for not fusing, kernels with their source, and the origin of each. PyTorch finds the loggers by module name;
in a process without PyTorch, Python's own logging reaches them as `logging.getLogger("taskmap")`.

TORCH_TRACE=<folder> receives the graph, plan and kernels of each compilation as artifacts, which tlparse shows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

_log = logging.getLogger(__name__)


def said(text: str, *values: object) -> None:
    """Log one line about the progress of a compilation."""
    _log.info(text, *values, stacklevel=2)


def detail(text: str, *values: object) -> None:
    """Log one line of detail, for debugging."""
    _log.debug(text, *values, stacklevel=2)


def stage(kind: str, name: str, text: Callable[[], object]) -> None:
    """Log a stage of a graph's compilation; ``text`` is called only if a log or trace receives it.

    kind: forward, backward or inference, or another name of the graph. name: graph, plan or kernels.
    """
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s %s:\n%s", kind, name, text(), stacklevel=2)
    trace = _trace()
    if trace is not None:
        trace(
            "artifact",
            metadata_fn=lambda: {"name": f"taskmap_{kind}_{name}", "encoding": "string"},
            payload_fn=lambda: str(text()),
            expect_trace_id=False,
        )


def _trace() -> Callable[..., None] | None:
    """PyTorch's structured log, if PyTorch is loaded and a trace is being written."""
    logs = sys.modules.get("torch._logging")
    internal = getattr(logs, "_internal", None)
    if not getattr(getattr(internal, "trace_log", None), "handlers", None):
        return None
    write: Callable[..., None] | None = getattr(logs, "trace_structured", None)
    return write
