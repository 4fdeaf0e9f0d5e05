"""Functions whose modules load at the first call, so that startup pays only for the modules it uses."""

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
