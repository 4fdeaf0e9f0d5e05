"""LSTMs that are trained: traced so that they have gradients.

PyTorch takes an LSTM of the CPU apart into oneDNN's layers as if for inference, whenever the sequence itself needs no
gradient. When the weights do, the backward pass has nothing to work with: what the layer would save is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def trainable_lstms(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Rewrite the LSTMs of a captured graph, in place, where gradients may be asked for."""
    if not torch.is_grad_enabled() or not any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs):
        return
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        found = [n for n in module.graph.nodes if n.op == "call_function" and n.target in _LSTMS]
        for node in found:
            node.target = _lstm
        if found:
            module.recompile()


def _lstm(*args: Any, **kwargs: Any) -> Any:
    """torch.lstm in single operators, which all have gradients."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return torch.lstm(*args, **kwargs)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


_LSTMS = (torch.lstm, torch._VF.lstm)  # the second as torch.nn.LSTM calls it
