"""Tensors without memory: fake and functional ones, and calls under the modes that create them.

A native program needs addresses. Calls without them are answered as in other backends: PyTorch runs the traced graph
operator by operator, which computes only shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_traceable_wrapper_subclass

Call = Callable[[list[Any]], Any]

_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, type(None)})


def unless_without_memory(call: Call, gm: torch.fx.GraphModule) -> Call:
    """``call``, a boxed callable, if all tensors have memory; otherwise ``gm`` runs."""

    def guarded(args: list[Any]) -> Any:
        if (_modes() or not _PLAIN.issuperset(map(type, args))) and _lacks_memory(args):
            given = tuple(args)
            args.clear()
            return gm(*given)
        return call(args)

    guarded._boxed_call = True  # type: ignore[attr-defined]  # where AOTAutograd looks for it
    return guarded


def _lacks_memory(args: list[Any]) -> bool:
    active = _get_current_dispatch_mode_stack()
    if any(isinstance(mode, (FakeTensorMode, FunctionalTensorMode)) for mode in active):
        return True
    return any(isinstance(x, (torch._subclasses.FakeTensor, FunctionalTensor)) or _is_wrapper(x) for x in args)


def _is_wrapper(value: object) -> bool:
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)
