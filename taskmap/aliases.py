"""Which results of a graph share memory with each other and with its arguments, as PyTorch traced it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from taskmap.ir.errors import ImportGraphError


@dataclass(frozen=True, slots=True)
class Aliases:
    """A key for the storage of each argument and each result; None for what is no tensor. Equal keys share memory."""

    arguments: tuple[Hashable, ...]
    results: tuple[Hashable, ...]


def read_aliases(gm: torch.fx.GraphModule) -> Aliases:
    """The storages of a traced graph, read off the values that tracing computed."""
    arguments = [_storage(n.meta.get("val")) for n in gm.graph.nodes if n.op == "placeholder"]
    (output,) = gm.graph.find_nodes(op="output")
    returned = output.args[0]
    if not isinstance(returned, (tuple, list)):
        raise ImportGraphError("the graph does not return a list of results")
    results = [_storage(n.meta.get("val")) if isinstance(n, torch.fx.Node) else None for n in returned]
    return Aliases(tuple(arguments), tuple(results))


def _storage(value: object) -> Hashable:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return value.untyped_storage()._cdata
