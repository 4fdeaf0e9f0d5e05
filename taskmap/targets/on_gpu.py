"""Runs work on one of several GPUs, and explains failures of PyTorch's allocator there."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from taskmap.ir.errors import DeviceMemoryError


class NoMemoryError(DeviceMemoryError, torch.OutOfMemoryError):
    """DeviceMemoryError that is also PyTorch's error, for code that catches that to try a smaller batch."""


class on_gpu:  # noqa: N801  a context manager that reads as a function
    """Makes ``device``, a GPU with its index, PyTorch's current device within the block.

    Raises DeviceMemoryError, which is a torch.OutOfMemoryError with advice, in place of PyTorch's own.
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
