"""One-operator modules that engines can compile side by side without sharing compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from types import FunctionType

from torch import Tensor, nn

_serial = count()


def fresh_module(forward: Callable[..., Tensor], parameters: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A module in eval mode with this forward (a plain function whose first argument is `self`) and these parameters.

    Its code is a copy under a name of its own: dynamo keeps compiled entries by code object and notes by name which
    sizes vary, so engines that shared one would pay for each other's guards, and sizes would be compiled as dynamic.
    """
    if not isinstance(forward, FunctionType):
        raise TypeError(f"a module's forward is made from a plain function, not from a {type(forward).__name__}")
    code = forward.__code__.replace(co_name=f"{forward.__name__}_{next(_serial)}")
    copy = FunctionType(code, forward.__globals__, code.co_name)
    module: nn.Module = type("OneOperator", (nn.Module,), {"forward": copy})()
    for name, value in (parameters or {}).items():
        module.register_parameter(name, nn.Parameter(value))
    return module.eval()
