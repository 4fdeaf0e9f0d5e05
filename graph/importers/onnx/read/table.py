"""The table of lowerings, from an operator and its version to the function that builds its nodes.

A lowering takes an ``OnnxCall`` and returns the operator's results: a node, a value, or a list of them with one entry
per result. It raises UnsupportedError for a call that it cannot handle; the operator's function body, if ONNX provides
one, is then read instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskmap.ir.errors import GraphError

Lowering = Callable[[Any], Any]
"""From a `read.call.OnnxCall` to its results."""
F = TypeVar("F", bound=Callable[..., Any])
NEWEST = 1 << 30

TABLE: dict[tuple[str, str], list[tuple[int, int, Lowering]]] = {}
"""Maps an operator's domain and name to lowerings, each with the first and the last operator version it covers."""


def lowering(*names: str, since: int = 1, until: int = NEWEST, domain: str = "") -> Callable[[F], F]:
    """Registers the decorated function for the operators ``names``, for definitions with a version in the range."""

    def register(function: F) -> F:
        for name in names:
            entries = TABLE.setdefault((domain, name), [])
            if any(first <= until and since <= last for first, last, _ in entries):
                raise GraphError(f"{name} has two lowerings for one version")
            entries.append((since, until, function))
        return function

    return register


def find(domain: str, name: str, version: int) -> Lowering | None:
    """The lowering for the operator as defined in ``version`` of its domain, or None."""
    for first, last, function in TABLE.get((domain, name), ()):
        if first <= version <= last:
            return function
    return None
