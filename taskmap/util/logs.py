"""What a compilation says while it goes on.

TORCH_LOGS="taskmap" prints one line for each graph and each fallback, TORCH_LOGS="+taskmap" also graphs, plans with
what was not fused and why, kernels with their source, and where each came from. PyTorch finds the loggers by the names
of the modules; in a process without PyTorch, Python's own logging reaches them as `logging.getLogger("taskmap")`.

TORCH_TRACE=<folder> receives graph, plan and kernels of each compilation as artifacts, which tlparse shows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

_log = logging.getLogger(__name__)


def said(text: str, *values: object) -> None:
    """One line for people who follow what is compiled."""
    _log.info(text, *values, stacklevel=2)


def detail(text: str, *values: object) -> None:
    """One line for people who look for something."""
    _log.debug(text, *values, stacklevel=2)


def stage(kind: str, name: str, text: Callable[[], object]) -> None:
    """A stage of the compilation of a graph; ``text`` is made only when somebody wants it.

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
    """PyTorch's structured log, where it is loaded and somebody reads it."""
    logs = sys.modules.get("torch._logging")
    internal = getattr(logs, "_internal", None)
    if not getattr(getattr(internal, "trace_log", None), "handlers", None):
        return None
    write: Callable[..., None] | None = getattr(logs, "trace_structured", None)
    return write
