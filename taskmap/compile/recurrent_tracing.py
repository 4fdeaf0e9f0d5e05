"""Dynamo traces torch.nn.LSTM, GRU and RNN for this backend, while gradients are off.

By default Dynamo leaves a function that calls such a layer to PyTorch, whole, because most backends would unroll every
time step. ``torch._dynamo.config.allow_rnn`` changes that for every backend of the process. Here it holds only while
Dynamo traces for this one (see recurrent_layers.py). Training keeps the default: a gradient runs the layer
once more, which costs more than compiling gains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._dynamo import config as _config
from torch._dynamo.callback import callback_handler
from torch._dynamo.eval_frame import innermost_backend

_TRACER = ("torch._dynamo.convert_frame", "_compile", "compiler_fn")
"""The function of Dynamo that compiles a frame, and its argument that holds the backend."""


class _Lasting(list[Callable[..., None]]):
    """Callbacks of which the first stays: Dynamo clears its callbacks together with its caches (torch.compiler.reset),
    and the next frame is traced before anything here is called."""

    def clear(self) -> None:
        del self[1:]


class RecurrentTracing:
    """The setting for ``backends``, functions that torch.compile calls, or what stands for them: partial functions and
    wrappers."""

    def __init__(self, *backends: Callable[..., Any]) -> None:
        self._backends = backends
        self._before: bool | None = None

    def register(self) -> None:
        """Have Dynamo call ``begin`` and ``end`` around its compilations from now on."""
        callback_handler.start_callbacks = _Lasting([self.begin, *callback_handler.start_callbacks])
        callback_handler.end_callbacks = _Lasting([self.end, *callback_handler.end_callbacks])

    def begin(self, _: object = None) -> None:
        """Dynamo is about to trace a frame."""
        if torch.is_grad_enabled() or any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda")):
            return
        if hasattr(_config, "allow_rnn") and _traced_for() in self._backends:
            self._before = _config.allow_rnn
            _config.allow_rnn = True

    def end(self, _: object = None) -> None:
        """Dynamo has traced it."""
        if self._before is not None:
            _config.allow_rnn, self._before = self._before, None


def _traced_for() -> object:
    """The backend that Dynamo traces for, up the stack; None if this version of PyTorch does not show it."""
    module, function, argument = _TRACER
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == function and frame.f_globals.get("__name__") == module:
            compiler = frame.f_locals.get(argument)
            backend = compiler and innermost_backend(compiler)
            backend = getattr(backend, "compiler_fn", backend)  # inside what torch.compile wraps around it
            backend = getattr(backend, "__wrapped__", backend)
            return backend.func if isinstance(backend, partial) else backend
    return None
