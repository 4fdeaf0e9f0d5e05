"""Results of a forward graph that only its backward graph reads: they have the strides that suit the kernels.

AOTAutograd traces the backward graph for the strides of eager mode, but compiles it for those that the compiled
forward graph reports (`TracingContext.report_output_strides`). A convolution then writes its result with the channels
innermost, and its gradients read it so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from taskmap.backend.program.binding import Binding, View
from taskmap.compile.aliases import returned_by, traced_metadata
from taskmap.graph.importers.torch.homes import storage_of
from taskmap.ir.construct import static_size


def saved_results(gm: fx.GraphModule, arguments: int) -> frozenset[fx.Node]:
    """The results of a forward graph that are saved for backward and not returned to the user, with known sizes and a
    storage of their own."""
    metadata = traced_metadata(arguments)
    if metadata is None or getattr(metadata, "num_symints_saved_for_bw", None) is None:
        return frozenset()
    returned = returned_by(gm)
    saved = range(len(returned))[metadata.tensors_saved_for_backwards_slice]
    nodes = {i: n for i, n in enumerate(returned) if isinstance(n, fx.Node)}
    others = {n for i, n in nodes.items() if i not in saved}
    known = {*nodes.values(), *gm.graph.find_nodes(op="placeholder")}
    sharing = Counter[Hashable](storage_of(n.meta.get("val")) for n in known)
    mine = [n for i, n in nodes.items() if i in saved and n not in others and n.op == "call_function"]
    return frozenset(n for n in mine if _has_own(n.meta.get("val"), sharing))


def _has_own(value: Any, sharing: Counter[Hashable]) -> bool:
    """True for a tensor of known sizes that is alone in its storage."""
    if not isinstance(value, torch.Tensor) or sharing[storage_of(value)] != 1:
        return False
    return all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def report_strides(gm: fx.GraphModule, free: frozenset[fx.Node], binding: Binding) -> None:
    """Tells AOTAutograd the strides of all results, of which those in ``free`` may differ from the traced ones."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None or not free:
        return
    made = {**binding.checked, **binding.made}
    for node, output in zip(returned_by(gm), binding.outputs, strict=False):
        spec = (output.spec or made.get(output.slot)) if node in free and isinstance(output, View) else None
        known = None if spec is None else tuple(static_size(s) or 0 for s in spec.strides)
        context.output_strides.append(_traced(node) if known is None else known)


def take_strides(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """The arguments of a backward graph get the strides that the forward graph reported, which its examples have."""
    for node, example in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        traced = node.meta.get("val")
        if isinstance(traced, torch.Tensor) and isinstance(example, torch.Tensor) and traced.shape == example.shape:
            node.meta["val"] = example


def _traced(node: Any) -> tuple[int, ...] | None:
    """The strides of eager mode; None if they are not known numbers."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    strides = value.stride() if isinstance(value, torch.Tensor) and value.layout == torch.strided else ()
    return tuple(strides) if strides and all(isinstance(s, int) for s in strides) else None
