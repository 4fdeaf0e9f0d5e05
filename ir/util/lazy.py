"""Functions whose modules load when they are first called, so that a start waits only for what it uses."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(module: str, name: str) -> Callable[..., Any]:
    """The function ``name`` of ``module``, which is imported at the first call.

    For a part that most processes never need, such as the schedules of a device that is not there; an ordinary import
    serves everything else.
    """
    found: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.append(getattr(import_module(module), name))
        return found[0](*args, **kwargs)

    call.__name__ = name
    return call
