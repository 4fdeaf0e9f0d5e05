"""Functions whose modules load at the first call, so that startup pays only for the modules it uses.

    if TYPE_CHECKING:
        from taskmap.tuning.tune import tune as _tune
    else:
        _tune = lazily("taskmap.tuning.tune", "tune")

The import is for types, and for the tools that follow names; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(module: str, name: str) -> Callable[..., Any]:
    """The function ``name`` of ``module``, which is imported at the first call.

    For parts that most processes never need, such as the schedules of a device that is absent; everything else uses
    ordinary imports.
    """
    found: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.append(getattr(import_module(module), name))
        return found[0](*args, **kwargs)

    call.__name__ = name
    return call
