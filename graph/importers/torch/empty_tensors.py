"""Decides at compile time which tensors of symbolic sizes have no elements.

Definitions read at indices held within a tensor, so a tensor that they read has at least one element. Its sizes may
still be 0 in some calls (``s // 2 - 1``): guards make such calls compile again, with sizes that are known.
"""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves


def settle_empty_tensors(gm: fx.GraphModule) -> None:
    """Guards that every size of a tensor in the graph is at least 1. If it is 0 in the traced call, its symbols are
    fixed at their values in this call instead."""
    settled: set[sympy.Basic] = set()
    for node in gm.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                for size in value.shape:
                    if isinstance(size, torch.SymInt) and size.node.expr not in settled:
                        settled.add(size.node.expr)
                        _settle(size)


def _settle(size: torch.SymInt) -> None:
    shapes: Any = size.node.shape_env
    if shapes is None or not isinstance(size.node.hint, int) or statically_known_true(size >= 1):
        return
    if size >= 1:  # evaluating the comparison makes it a guard
        return
    for symbol in size.node.expr.free_symbols:
        int(shapes.create_symintnode(symbol, hint=None))  # as does asking for its value
