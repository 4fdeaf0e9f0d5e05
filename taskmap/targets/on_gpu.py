"""Working on one of several GPUs, and what is said when PyTorch's allocator finds no memory there."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from taskmap.ir.errors import DeviceMemoryError


class NoMemoryError(DeviceMemoryError, torch.OutOfMemoryError):
    """DeviceMemoryError for those, too, who catch PyTorch's error to try a smaller batch."""


class on_gpu:  # noqa: N801  a context manager that reads as a function
    """PyTorch's current device is ``device``, a GPU with its index, inside; as it was before, outside.

    Raises DeviceMemoryError, which is a torch.OutOfMemoryError, in the place of one without advice.
    """

    __slots__ = ("_device", "_guard")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._guard: Any = None

    def __enter__(self) -> None:
        if torch.cuda.current_device() != self._device.index:
            self._guard = torch.cuda.device(self._device)
            self._guard.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._guard is not None:
            self._guard.__exit__(kind, error, at)
        if isinstance(error, torch.OutOfMemoryError) and not isinstance(error, NoMemoryError):
            raise NoMemoryError(
                "the GPU has no memory left",
                where=str(self._device),
                why=(str(error).splitlines() or ["PyTorch's allocator found none."])[0],
                hint="Use a smaller batch, or torch.cuda.empty_cache().",
            ) from error
