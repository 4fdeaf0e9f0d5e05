"""Resizing operators stay whole while a graph is traced.

PyTorch takes them apart before gradients are derived, into reads at positions that are tensors: their gradients are
then scattered, element by element. Its own formulas keep an operator of the gradient, which taskmap lowers. Those of
symbolic sizes are taken apart still: the shapes of their gradients cannot be traced (PyTorch 2.13).
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
_EARLY = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""The keys by which a rule comes before autograd."""
_Rules = Mapping[Any, Callable[..., Any]]


@contextmanager
def whole_operators() -> Iterator[None]:
    """Tracing inside keeps these operators whole. Dynamo compiles one graph at a time, in whichever thread."""
    with ExitStack() as stack:
        for name in _RESIZING:
            packet = getattr(torch.ops.aten, name)
            whole = {
                key: partial(_by_size, packet.default, packet.vec.py_kernels[key])
                for key in _EARLY
                if key in packet.vec.py_kernels
            }
            stack.enter_context(_early_rules(packet.vec, whole))
        yield


@contextmanager
def _early_rules(op: OpOverload, rules: _Rules) -> Iterator[None]:
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
    with _early_rules(whole, {}):
        made: Tensor = whole(x, sizes, *more[:-1], *(factors or [None] * len(sizes)))
    return made
