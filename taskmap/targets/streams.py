"""Work on GPU streams chosen by others: prepared results are waited for on other streams, and a user's capture of a
CUDA graph is distinguished from immediate work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from taskmap.ir.errors import UnsupportedError

# These functions have no type annotations.
_is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
_current: Callable[[torch.device], Any] = torch.cuda.current_stream
_new_event: Callable[[], Any] = torch.cuda.Event
_number: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # PyTorch with CUDA has it


def stream_number(index: int) -> int:
    """The handle of the stream that a GPU's work now goes to. It makes no object: this is done in every call."""
    return _number(index) if _number is not None else int(_current(torch.device("cuda", index)).cuda_stream)


def is_capturing(device: torch.device) -> bool:
    """True if the caller is capturing a CUDA graph: work launched now runs later, once for each replay."""
    return device.type == "cuda" and _is_capturing()


def refuse_capture(device: torch.device, what: str) -> None:
    """Raises UnsupportedError while a CUDA graph is captured, because ``what`` would become a part of the graph."""
    if not is_capturing(device):
        return
    raise UnsupportedError(
        "a CUDA graph is being captured that cannot hold the first call of a compiled function",
        why=f"{what} at the first call, not at each replay.",
        hint="Call the compiled function once with such arguments before the capture.",
    )


class OnStream:
    """Tensors that the current stream computes. Other streams wait for them, and keep the memory as long as their work
    needs it.
    """

    def __init__(self, device: torch.device, tensors: Sequence[torch.Tensor]) -> None:
        self._device, self._tensors = device, tuple(tensors)
        stream = _current(device)
        self._known = {int(stream.cuda_stream)}
        self._event = _new_event()
        self._event.record(stream)
        self._done = False

    def wait(self) -> None:
        """The current stream waits for the tensors. A capture begins after all work is done, so it has nothing to
        wait for."""
        number = stream_number(self._device.index)
        if number in self._known and (self._done or len(self._known) == 1):
            return
        stream = _current(self._device)
        if number not in self._known:
            for tensor in self._tensors:
                tensor.record_stream(stream)
        if not self._done and not is_capturing(self._device):
            self._done = bool(self._event.query())
            if not self._done:
                stream.wait_event(self._event)
        self._known.add(number)
