"""Operators that PyTorch runs: how an extern node stores its call, and how the call is repeated.

An extern node's attrs: ``target`` (the operator), ``args`` and ``kwargs`` (nested lists, tuples and dicts in which each
tensor argument is a ``Slot`` and each symbolic size an expression), ``reason`` (why it is not compiled).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.graph.nodes import ExternNode
from taskmap.ir.errors import GraphError
from taskmap.ir.nodes import Expr


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of the node's i-th input among its arguments."""

    index: int


def fill(structure: object, tensors: Sequence[object], size: Callable[[Expr], object]) -> object:
    """``structure`` with every slot replaced by its tensor and every expression by its value under ``size``."""
    if isinstance(structure, Slot):
        return tensors[structure.index]
    if isinstance(structure, Expr):
        return size(structure)
    if isinstance(structure, (list, tuple)):
        items = [fill(item, tensors, size) for item in structure]
        return items if isinstance(structure, list) else tuple(items)
    if isinstance(structure, dict):
        return {key: fill(value, tensors, size) for key, value in structure.items()}
    return structure


def call_extern(node: ExternNode, tensors: Sequence[object], size: Callable[[Expr], object]) -> object:
    """Calls the extern ``node`` on ``tensors``, one per input, and returns the operator's result."""
    if not callable(node.target):
        raise GraphError(f"the target of {node!r} cannot be called")
    args = fill(node.args, tensors, size)
    kwargs = fill(node.kwargs, tensors, size)
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise GraphError(f"the arguments of {node!r} are malformed")
    return node.target(*args, **kwargs)
