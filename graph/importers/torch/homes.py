"""The storage, in PyTorch's terms, of the values that the caller gets.

Reading a graph drops copies, which nothing inside the graph can notice. A caller can: results that share memory in
PyTorch, with each other or with arguments, must share it here, and no others may.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import fx

from taskmap.graph.analysis.inlining import views_of_memory
from taskmap.graph.nodes import ConstantNode, InputNode, Node


class Homes:
    """The PyTorch storage of each value that has memory of its own here."""

    def __init__(self, gm: fx.GraphModule) -> None:
        outputs = [n for node in gm.graph.find_nodes(op="output") for n in node.all_input_nodes]
        self._returned = {storage_of(n.meta.get("val")) for n in outputs} - {None}
        self._homes: dict[Node, Hashable] = {}

    def note(self, node: Node, value: torch.Tensor) -> None:
        """Records that ``node`` has memory of its own, corresponding to that of ``value``."""
        self._homes[node] = storage_of(value)

    def is_strange(self, node: Node, value: torch.Tensor) -> bool:
        """True if ``node`` shares memory with another value, PyTorch's ``value`` does not, and the caller sees both."""
        storage = storage_of(value)
        if storage not in self._returned:
            return False
        root = node
        while views_of_memory(root):
            root = root.inputs[0]
        known = self._homes.setdefault(root, storage)
        if known == storage:
            return False
        if not isinstance(root, (InputNode, ConstantNode)) and known not in self._returned:
            self._homes[root] = storage  # nothing outside sees the memory that PyTorch has copied from
            return False
        return True


def viewed_arguments(operator: object) -> list[int]:
    """The positions of the arguments whose memory an operator's results are views of, as its schema says."""
    schema = getattr(operator, "_schema", None)
    parameters = [] if schema is None else schema.arguments
    return [k for k, p in enumerate(parameters) if p.alias_info is not None and not p.alias_info.is_write]


def storage_of(value: object) -> Hashable:
    """The identity of the storage of a strided tensor; None for other values."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    key: Hashable = value.untyped_storage()._cdata
    return key
