"""Commands whose modules take long to import: the compiler, onnx, PyTorch; a terminal shows a message meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from taskmap.util.gc_pause import collector_frozen
from taskmap.util.progress import waiting


def slowly(module: str, name: str, what: str = "PyTorch and onnx") -> Callable[..., Any]:
    """As ``lazily``: the function ``name`` of ``module``, which is imported by the first call. ``what``: the packages
    that it imports, for the message."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with waiting(f"loading {what}"), collector_frozen():
            function = getattr(import_module(module), name)
        return function(*args, **kwargs)

    return call
