"""Rules for operators that PyTorch takes apart before gradients are derived, while a graph is traced.

Resizing stays whole. PyTorch makes it reads at positions that are tensors, whose gradients are scattered, element by
element. Its own formulas keep an operator of the gradient, which taskmap lowers. Those of symbolic sizes are taken
apart still: the shapes of their gradients cannot be traced (PyTorch 2.13).

Padding around (circular) is concatenations of slices. PyTorch copies them into an empty tensor one after another, which
is a pass over all of it for each side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import upsample_compute_output_size
from torch._ops import OpOverload

_RESIZING = (
    *(f"{name}{rank}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)),
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
)
_CIRCULAR = torch.ops.aten._pad_circular.default
_EARLY = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""The keys by which a rule comes before autograd."""
_Rules = Mapping[Any, Callable[..., Any]]


@contextmanager
def early_rules() -> Iterator[None]:
    """Tracing inside uses these rules. Dynamo compiles one graph at a time, in whichever thread."""
    with ExitStack() as stack:
        stack.enter_context(_only(_CIRCULAR, dict.fromkeys(_EARLY, _around)))
        for name in _RESIZING:
            packet = getattr(torch.ops.aten, name)
            whole = {
                key: partial(_by_size, packet.default, packet.vec.py_kernels[key])
                for key in _EARLY
                if key in packet.vec.py_kernels
            }
            stack.enter_context(_only(packet.vec, whole))
        yield


@contextmanager
def _only(op: OpOverload, rules: _Rules) -> Iterator[None]:
    """``op`` has these rules before autograd, and no others, as torch.export does it for operators to be kept."""
    before = {key: op.py_kernels.pop(key) for key in _EARLY if key in op.py_kernels}
    op.py_kernels.update(rules)
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        for key in rules:
            op.py_kernels.pop(key, None)
        op.py_kernels.update(before)
        op._dispatch_cache.clear()


def _by_size(
    whole: OpOverload,
    apart: Callable[..., Tensor],
    x: Tensor,
    output_size: Sequence[int] | None,
    *more: bool | Sequence[float] | None,
) -> Tensor:
    """The overload with sizes, or PyTorch's rule if those are symbolic. ``more``: ``align_corners`` of a linear one,
    then the factors of the sizes."""
    factors: Any = more[-1]
    sizes: Any = upsample_compute_output_size(x.size(), output_size, factors)  # type: ignore[no-untyped-call]
    if not all(type(n) is int for n in (*x.shape, *sizes)):
        return apart(x, output_size, *more)
    with _only(whole, {}):
        made: Tensor = whole(x, sizes, *more[:-1], *(factors or [None] * len(sizes)))
    return made


def _around(x: Tensor, pad: Sequence[int]) -> Tensor:
    """Each dimension, from the last on, between its own end and its own beginning; the result is contiguous. PyTorch
    crops, and refuses what would go round more than once."""
    sides = [(-1 - k, pad[2 * k], pad[2 * k + 1]) for k in range(len(pad) // 2)]
    if any(side < 0 or side > x.shape[d] for d, *both in sides for side in both):
        with _only(_CIRCULAR, {}):
            refused: Tensor = _CIRCULAR(x, pad)
        return refused
    for d, left, right in sides:
        size = x.shape[d]
        parts = [x.narrow(d, size - left, left), x, x.narrow(d, 0, right)]
        x = torch.cat([part for part, n in zip(parts, (left, 1, right), strict=True) if n], d)
    return x.contiguous()
