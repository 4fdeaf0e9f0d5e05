"""Concatenations in place: a ``cat`` whose inputs are written directly into the result needs no kernel."""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.graph.nodes import Node
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Dim


def concatenated_axis(cat: Node) -> int:
    """The axis along which ``cat`` concatenates its inputs."""
    axis = cat.attrs.get("dim")
    if not isinstance(axis, int):
        raise GraphError(f"{cat!r} has no attribute 'dim', the axis along which it concatenates")
    return axis


def parts_of(cat: Node) -> Iterator[tuple[Node, Dim]]:
    """Each input of ``cat`` with its first position along the axis."""
    axis = concatenated_axis(cat)
    start: Dim = 0
    for part in cat.inputs:
        yield part, start
        start = start + part.shape[axis]
