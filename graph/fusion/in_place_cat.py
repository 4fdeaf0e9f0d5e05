"""Concatenations in place: a ``cat`` whose inputs are written where they belong needs no kernel."""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.graph.nodes import Node
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Dim


def concatenated_axis(cat: Node) -> int:
    """The axis along which the inputs of ``cat`` stand one after another."""
    axis = cat.attrs.get("dim")
    if not isinstance(axis, int):
        raise GraphError(f"{cat!r} does not say along which axis it concatenates")
    return axis


def parts_of(cat: Node) -> Iterator[tuple[Node, Dim]]:
    """Each input of ``cat`` with its first position along the axis."""
    axis = concatenated_axis(cat)
    start: Dim = 0
    for part in cat.inputs:
        yield part, start
        start = start + part.shape[axis]
