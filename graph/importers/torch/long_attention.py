"""Attention of long sequences in training on a CPU, which PyTorch runs.

Its gradient is products of whole matrices of scores here, and so is the forward, which has to give the logarithms of
their sums. PyTorch keeps a block of scores in cache: where all of them are more than caches hold, that is
faster, and takes memory that grows with the sequence, not with its square.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from taskmap.graph.importers.torch.results import read_results

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_LONG = {4: 1 << 18, 2: 1 << 20}
"""By the bytes of an element: scores of a head from which PyTorch is faster. Its products of narrow floats are slow."""
_MANY = {4: (1 << 17, 1 << 22)}
"""The same, for scores of a head and of all heads."""


def left_to_pytorch(node: fx.Node, device: torch.device) -> str | None:
    """The reason why PyTorch runs this operator, if it does."""
    if device.type != "cpu" or node.target not in (_FORWARD, _BACKWARD):
        return None
    queries, keys = node.args[0 if node.target == _FORWARD else 1], node.args[1 if node.target == _FORWARD else 2]
    if node.target == _FORWARD and not read_results(node) - {0}:
        return None  # without a gradient, nothing but the result is computed
    q, k = _tensor(queries), _tensor(keys)
    rows, columns = q.shape[-2], k.shape[-2]
    if not all(isinstance(n, int) for n in (*q.shape, columns)):
        return None
    size = q.dtype.itemsize
    one, every = rows * columns, math.prod(q.shape[:-1]) * columns
    head, heads = _MANY.get(size, (math.inf, math.inf))
    if one < _LONG.get(size, math.inf) and (one < head or every < heads):
        return None
    return "long attention in training: PyTorch keeps no matrix of scores"


def _tensor(argument: Any) -> torch.Tensor:
    value = argument.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value
