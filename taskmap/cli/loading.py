"""Commands whose modules import PyTorch and onnx, which takes seconds; a terminal shows a message meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from taskmap.util.gc_pause import collector_frozen
from taskmap.util.progress import waiting


def slowly(module: str, name: str) -> Callable[..., Any]:
    """As ``lazily``: the function ``name`` of ``module``, which is imported by the first call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with waiting("loading PyTorch and onnx"), collector_frozen():
            function = getattr(import_module(module), name)
        return function(*args, **kwargs)

    return call
