"""Checks the resources that a graph needs, before anything is allocated."""

from __future__ import annotations

import os

from taskmap.graph.nodes import Graph, Node
from taskmap.ir.construct import static_size
from taskmap.ir.errors import ImportGraphError
from taskmap.ir.nodes import Expr, Reduce
from taskmap.ir.visit import walk_exprs

MOST_OPERATIONS = 1 << 52
"""An operator with more operations than this would run for days: the model file must be wrong."""


def physical_memory() -> int:
    """This machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def elements(node: Node) -> int:
    """The number of elements of a node; symbolic sizes count as one."""
    count = 1
    for size in node.shape:
        count *= static_size(size) or 1
    return count


def operations(node: Node) -> int:
    """The approximate number of operations of a node; symbolic sizes count as one."""
    return elements(node) * (_reduced(node.define.body) if node.define is not None else 1)


def _reduced(body: Expr) -> int:
    most = 1
    for e in walk_exprs(body):
        if isinstance(e, Reduce):
            count = 1
            for _, extent in e.axes:
                count *= static_size(extent) or 1
            most = max(most, count)
    return most


def check_size(graph: Graph) -> None:
    """Raises ImportGraphError for a tensor larger than the memory, and for an operator that would not end."""
    most = physical_memory()
    for node in graph.nodes():
        size = elements(node) * node.dtype.bytes
        if size > most:
            raise ImportGraphError(
                f"{node.origin.operator or node.op} makes a tensor of {size} bytes",
                where=f"shape {list(node.shape)}",
                why=f"this machine has {most} bytes of memory.",
            )
        if operations(node) > MOST_OPERATIONS:
            raise ImportGraphError(
                f"{node.origin.operator or node.op} needs {operations(node)} operations", why="it would not end."
            )
