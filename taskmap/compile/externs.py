"""Operators that PyTorch or numpy runs between native segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taskmap.backend.program.sizes import sizes_function
from taskmap.calls.bound import AnyTensor, ExternFunction
from taskmap.graph.extern import call_extern
from taskmap.graph.nodes import ExternNode
from taskmap.ir.nodes import Expr, Var


def extern_function(node: ExternNode, dims: Sequence[Var]) -> ExternFunction:
    """The function that calls an extern node's operator on its tensors and the values of the graph's ``dims``."""
    sizes = {e: sizes_function([e], dims) for e in _sizes([node.args, node.kwargs])}

    def call(tensors: Sequence[AnyTensor], values: Sequence[int]) -> object:
        return call_extern(node, tensors, lambda e: sizes[e](values)[0])

    return call


def _sizes(structure: object) -> Iterator[Expr]:
    """The symbolic sizes in the arguments."""
    if isinstance(structure, Expr):
        yield structure
    elif isinstance(structure, dict):
        for value in structure.values():
            yield from _sizes(value)
    elif isinstance(structure, (list, tuple)):
        for item in structure:
            yield from _sizes(item)
