"""The division of a joint graph into forward and backward, where the program mutates its inputs.

AOTAutograd writes mutated inputs back after the forward pass. A backward pass that recomputes from such an input, as
the min-cut partitioner plans, would read the new value: autograd refuses that, or nobody notices. So the joint graph
reads a copy, which the partitioner may save but not recompute:

    y = x1 - x0          c = clone(x0)
    v = sin(y)           y = x1 - c              the backward pass reads y, or c if that is saved instead
    x0.copy_(...)        v = sin(y);  x0.copy_(...)

A copy that is not saved is dropped again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

_CLONE = torch.ops.aten.clone.default
_COPY = torch.ops.aten.copy_.default


def partition(joint: torch.fx.GraphModule, joint_inputs: Any, **options: Any) -> tuple[Any, Any]:
    """The forward and backward graphs of a joint graph, by PyTorch's min-cut partitioner; ``options`` are its own.

    A mutated input is never read by the backward pass.
    """
    copies = _copy_mutated(joint.graph)
    forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **options)
    if copies:
        _drop_unsaved(forward.graph, copies)
        forward.recompile()
    return forward, backward


def _copy_mutated(graph: torch.fx.Graph) -> set[str]:
    """Let every use of a mutated input read a copy, except the write to it; returns the names of the copies."""
    copies = set()
    for placeholder in _mutated(graph):
        users = [user for user in placeholder.users if not (user.target is _COPY and user.args[0] is placeholder)]
        if not users:
            continue
        with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
            made = graph.call_function(_CLONE, (placeholder,))
        with torch.no_grad():
            value = placeholder.meta["val"].clone()  # a fake tensor of its own: results with one storage share memory
        made.meta = {"val": value, "recompute": CheckpointPolicy.MUST_SAVE}
        for user in users:
            user.replace_input_with(placeholder, made)
        copies.add(made.name)
    return copies


def _mutated(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The inputs of the program that it mutates: in the graph, or by what AOTAutograd runs after it."""
    written = {node.args[0] for node in graph.find_nodes(op="call_function", target=_COPY)}
    (end,) = graph.find_nodes(op="output")
    later = {d.mutated_input for d in end.meta.get("desc", ()) if isinstance(d, InputMutationAOTOutput)}
    return [
        node
        for node in graph.find_nodes(op="placeholder")
        if (node in written or node.meta.get("desc") in later) and isinstance(node.meta.get("val"), torch.Tensor)
    ]


def _drop_unsaved(graph: torch.fx.Graph, copies: set[str]) -> None:
    """Let readers of a copy that the forward graph does not return read the input itself."""
    (end,) = graph.find_nodes(op="output")
    for node in list(graph.find_nodes(op="call_function", target=_CLONE)):
        if node.name in copies and end not in node.users:
            (source,) = node.all_input_nodes
            node.replace_all_uses_with(source)
            graph.erase_node(node)
