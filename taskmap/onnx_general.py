"""One graph of an ONNX model for all sizes of its named dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from taskmap.backend.sizes import sizes_function
from taskmap.graph.graph import Node
from taskmap.graph.importers.onnx.call import Check
from taskmap.ir.construct import constant_dim
from taskmap.ir.nodes import Dim, Expr, Var

Shapes = Sequence[tuple[int | str | None, ...] | None]
"""For each input the sizes that the model declares; None for an input without a declared rank."""


def variables(shapes: Shapes) -> tuple[list[tuple[Dim, ...]], dict[Var, tuple[object, ...]]] | None:
    """The shapes with a variable for each named or unnamed dimension, and where their values are found.

    None when a rank is not declared, or no size is symbolic.
    """
    named: dict[str, Var] = {}
    dims: dict[Var, tuple[object, ...]] = {}
    made: list[tuple[Dim, ...]] = []
    for i, shape in enumerate(shapes):
        if shape is None or 0 in shape:
            return None
        sizes: list[Dim] = []
        for d, size in enumerate(shape):
            if isinstance(size, int):
                sizes.append(size)
                continue
            var = named.get(size) if size is not None else None
            if var is None:
                var = Var(f"n{len(dims)}")
                dims[var] = ("size", i, d)
                if size is not None:
                    named[size] = var
            sizes.append(var)
        made.append(tuple(sizes))
    return (made, dims) if dims else None


class Guard:
    """Whether a graph that was read with symbolic sizes is right for given ones.

    All sizes must be positive, and what was taken for granted while reading must hold. ``nodes`` are the graph's.
    """

    def __init__(self, dims: dict[Var, tuple[object, ...]], checks: Sequence[Check], nodes: Sequence[Node]) -> None:
        self.places = [(int(str(i)), int(str(d))) for _, i, d in dims.values()]
        order = list(dims)
        seen: dict[Any, Dim] = {}
        for node in nodes:
            for size in node.shape:
                if isinstance(size, Expr) and constant_dim(size) is None:
                    seen.setdefault(size, size)
        self.sizes = sizes_function(list(seen.values()), order)
        self.checks = list(checks)
        self.left = sizes_function([c.a for c in checks], order)
        self.right = sizes_function([c.b for c in checks], order)
        self.known: dict[tuple[int, ...], bool] = {}

    def allows(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the graph may run on these tensors."""
        values = tuple(tensors[i].shape[d] for i, d in self.places)
        found = self.known.get(values)
        if found is None:
            if len(self.known) > 4096:
                self.known.clear()
            found = self.known[values] = self._check(values)
        return found

    def _check(self, values: tuple[int, ...]) -> bool:
        if min(values) < 1 or any(n < 1 for n in self.sizes(values)):
            return False
        pairs = zip(self.checks, self.left(values), self.right(values), strict=True)
        return all(a >= b if check.at_least else a == b for check, a, b in pairs)
