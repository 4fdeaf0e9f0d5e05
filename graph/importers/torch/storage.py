"""Finds the tensor behind a chain of views, for operators that address storage directly (as_strided)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from taskmap.ir.errors import ImportGraphError


def storage_root(node: fx.Node) -> fx.Node:
    """The node whose tensor holds the storage that ``node`` views: a dense tensor, or an input of the graph.

    Raises ImportGraphError if there is none: the graph then has no value that covers the storage.
    """
    root = node
    while root.op != "placeholder" and dense_order(root.meta["val"]) is None:
        sources = [n for n in root.all_input_nodes if _same_storage(n.meta.get("val"), root.meta["val"])]
        if not sources:
            raise ImportGraphError(f"{node.name} is read by storage positions, but covers only a part of its storage")
        root = sources[0]
    return root


def dense_order(value: torch.Tensor) -> Sequence[int] | None:
    """The dimensions, slowest first, of a tensor that fills its whole storage; None for any other tensor."""
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if not all(isinstance(n, int) for n in numbers) or value.storage_offset() != 0:
        return None
    order = sorted(range(value.dim()), key=lambda d: (-value.stride()[d], value.shape[d] == 1))
    expected = 1
    for d in reversed(order):
        if value.shape[d] != 1 and value.stride()[d] != expected:
            return None
        expected *= value.shape[d]
    return order if expected * value.element_size() == value.untyped_storage().nbytes() else None


def _same_storage(a: object, b: torch.Tensor) -> bool:
    return isinstance(a, torch.Tensor) and a.untyped_storage()._cdata == b.untyped_storage()._cdata
