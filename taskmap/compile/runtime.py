"""Calling a compiled graph from PyTorch: tensors in, tensors out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch._C._dynamo import guards
from torch.autograd import profiler as _profiler

from taskmap.backend.program.binding import Place
from taskmap.calls.bound import BoundProgram
from taskmap.calls.graph import BoundGraph
from taskmap.compile.constant_memory import ConstantMemory
from taskmap.compile.output_pool import KeptOutputs
from taskmap.graph.importers.torch.types import torch_dtype
from taskmap.ir.types import DType
from taskmap.targets.on_gpu import on_gpu
from taskmap.targets.platform import Runs

CPU = torch.device("cpu")
_EMPTY = getattr(guards, "_empty_strided_cpu", None)  # a tenth of the cost of torch.empty_strided
_REINTERPRET = getattr(guards, "_reinterpret_tensor", None)


class CompiledGraph(BoundGraph):
    """A compiled graph as AOTAutograd calls it: with a list of arguments, which it empties; it returns a list.

    Threads may call it at once. Raises IndexOutOfRangeError when an index from data lies outside its dimension, and
    DeviceMemoryError when a GPU has no memory left.
    """

    FACTS: ClassVar[Mapping[str, str]] = {"size": "size({})", "stride": "stride({})", "offset": "storage_offset()"}
    profiler: ClassVar[Any] = _profiler

    def __init__(
        self, bound: BoundProgram, executable: Runs, device: torch.device = CPU, alignment: int | None = None
    ) -> None:
        """``alignment``: the address of every tensor used by native code must be a multiple of this many bytes."""
        self._boxed_call = True  # on the instance, where wrappers of callables look for it
        self.device = device
        self._alignment = alignment
        self.new = _allocator(device)  # type: ignore[method-assign]  # a call less for every result
        self.kept = KeptOutputs()
        super().__init__(bound, executable, on_cpu=device.type == "cpu")

    def run(self, values: list[Any], constants: array[int]) -> list[Any]:
        """The outputs, given all slots filled before the call and the addresses of the constants."""
        if self.device.type != "cuda":
            return self._run(values, constants)
        with on_gpu(self.device):
            return self._run(values, constants)

    @staticmethod
    def type_of(dtype: DType) -> torch.dtype:
        """PyTorch's type."""
        return torch_dtype(dtype)

    @staticmethod
    def address(tensor: torch.Tensor | None) -> int:
        """The address of a tensor's first element; 0 for None."""
        return 0 if tensor is None else tensor.data_ptr()

    @staticmethod
    def block(sizes: Mapping[int, int]) -> ConstantMemory:
        """One block of memory for constants of these sizes, by slot."""
        return ConstantMemory(sizes)

    def fit_arguments(self, values: list[Any], places: Mapping[int, Place]) -> None:
        """Replace the arguments that native code cannot use in place."""
        for slot in self._specs.checked:
            given, strides = values[slot], places[slot][1]
            if given.stride() != strides or given.is_neg() or not (self._alignment is None or self._is_usable(given)):
                values[slot] = self._conform(given, strides)

    def shown(self, given: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """As it was given, so that results lie in the caller's memory; the copy, where it has none on this device."""
        plain = given.device == self.device and not given.is_neg() and not given._is_zerotensor()
        return given if plain else used

    def table(self, values: list[Any], places: Mapping[int, Place]) -> array[int]:
        """The addresses of the program's table."""
        if self.binding.externs:
            self._fill_zero_tensors(values, places)
            return super().table(values, places)
        io = array("q", [values[s].data_ptr() for s in self.binding.io])
        if 0 in io and self._fill_zero_tensors(values, places):
            io = array("q", [values[s].data_ptr() for s in self.binding.io])
        return io

    def _fill_zero_tensors(self, values: list[Any], places: Mapping[int, Place]) -> bool:
        """Give memory to inputs without any, in which autograd passes gradients that are zero; false if there are none.
        Empty tensors have the address 0, too."""
        found = [slot for slot in self._specs.checked if values[slot]._is_zerotensor()]
        for slot in found:
            values[slot] = self._conform(values[slot], places[slot][1])
        return bool(found)

    def fitted(self, tensor: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
        """The tensor with the strides that native code expects (None: its own), in memory that it can use."""
        if strides is None:
            return tensor if self._is_usable(tensor) else self._conform(tensor, tensor.stride())
        if tensor.stride() != strides or tensor.is_neg() or not self._is_usable(tensor):
            return self._conform(tensor, strides)
        return tensor

    def _is_usable(self, tensor: torch.Tensor) -> bool:
        """True if native code can use the tensor in place. A tensor without dimensions may be on the CPU."""
        if self._alignment is None:
            return True
        return tensor.device == self.device and tensor.data_ptr() % self._alignment == 0

    def _conform(self, given: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """A copy with the strides that native code expects, in memory that it can use."""
        shape = tuple(given.shape)
        if any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
            # Elements that share memory cannot be written one by one: copy each once, then expand.
            first = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
            one = given[tuple(slice(0, n) for n in first)]
            return self._conform(one, strides).expand(shape)
        return torch.empty_strided(shape, strides, dtype=given.dtype, device=self.device).copy_(given)

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor with the same layout."""
        made = tensor.clone()
        return made if made.stride() == tensor.stride() else self._conform(tensor, tensor.stride())

    @staticmethod
    def part(base: torch.Tensor, place: Place) -> torch.Tensor:
        """A part of a tensor's memory; its offset is relative to the tensor's first element."""
        return _part(base, *place)

    def part_of_copy(self, copy: torch.Tensor, place: Place) -> torch.Tensor:
        """A part of a tensor that ``copied`` made, which begins at its storage's start."""
        shape, strides, offset = place
        return _part(copy, shape, strides, offset - int(copy.storage_offset()))


def _allocator(device: torch.device) -> Callable[..., torch.Tensor]:
    """The function from shape, strides and dtype to a new tensor."""
    if device.type == "cpu" and _EMPTY is not None:
        made: Callable[..., torch.Tensor] = _EMPTY
        return made
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _part(base: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """A part of a tensor's memory, ``offset`` elements from its first. For autograd it is not a view: a
    detached result that is a view would require the gradient that ``base`` requires."""
    if _REINTERPRET is not None:
        made: torch.Tensor = _REINTERPRET(base, shape, strides, offset)
        return made
    return base.detach().as_strided(shape, strides, base.storage_offset() + offset)
