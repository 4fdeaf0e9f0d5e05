"""The memory of constants for PyTorch's tensors: one storage for all results of a preparation."""

from __future__ import annotations

import torch

from taskmap.calls.memory import ConstantBlock


class ConstantMemory(ConstantBlock):
    """The memory of the results of a run, by slot."""

    @staticmethod
    def shown(memory: object) -> tuple[torch.Tensor, int]:
        """The bytes of a buffer, and the address of the first."""
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        return whole, whole.data_ptr()

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor in the block. Raises MemoryError."""
        whole, start = self.place(slot)
        tensor = torch.empty(0, dtype=dtype)
        return tensor.set_(whole.untyped_storage(), start // dtype.itemsize, shape, strides)
