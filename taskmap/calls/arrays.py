"""Calling a compiled graph with numpy's arrays, without PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from sys import getrefcount
from typing import Any, ClassVar
from weakref import getweakrefcount

import numpy as np

from taskmap.backend.program.arrays import (
    Array,
    address_of,
    array_dtype,
    bytes_for,
    element_strides,
    first_line,
    laid_out,
    new_bytes,
    part_of,
)
from taskmap.backend.program.binding import Place, span
from taskmap.calls.bound import BoundProgram, SplitProgram
from taskmap.calls.graph import BoundGraph
from taskmap.calls.memory import ConstantBlock, OutputPool
from taskmap.calls.prepared import Called, PreparedGraph
from taskmap.ir.types import DType
from taskmap.targets.platform import LoadedPrograms, Platform, Runs


class KeptArrays(OutputPool):
    """The memory of one graph's latest outputs, by slot: arrays of bytes. Threads may take from it at once."""

    @staticmethod
    def size_of(block: Array) -> int:
        """The size in bytes of an array."""
        return block.nbytes

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array; it reuses the previous memory of ``slot`` if no array refers to it and it is of the
        same size."""
        size = span(shape, strides) * dtype.itemsize
        memory = self._kept.pop(slot, None)
        unknown = np.empty(0)  # to others: these are the counts of free memory
        # Every view of the memory refers to it, and so does a tensor of another library that shares it.
        is_free = memory is not None and _references(memory) == _references(unknown)
        if memory is None or not is_free or memory.nbytes != bytes_for(size):
            memory = new_bytes(size)
        self.keep(slot, memory)
        return laid_out(memory, first_line(memory), dtype, shape, strides)


def _references(memory: Array) -> tuple[int, int]:
    """The references to an array, and weak ones. The caller's own variable counts, too."""
    return getrefcount(memory), getweakrefcount(memory)


class ConstantArrays(ConstantBlock):
    """The memory of the results of a run, by slot."""

    @staticmethod
    def shown(memory: object) -> tuple[Array, int]:
        """The bytes of a buffer, and the address of the first."""
        whole: Array = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]  # any buffer
        return whole, address_of(whole)

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array in the block. Raises MemoryError."""
        whole, start = self.place(slot)
        return laid_out(whole, start, dtype, shape, strides)


class _Profiler:
    """PyTorch's profiler, where PyTorch is loaded."""

    @property
    def _is_profiler_enabled(self) -> bool:
        profiler = sys.modules.get("torch.autograd.profiler")
        return profiler is not None and bool(profiler._is_profiler_enabled)


class ArrayGraph(BoundGraph):
    """A compiled graph called with arrays, of the types that hold the graph's. ``alignment``: the address of every
    tensor used by native code must be a multiple of this many bytes; by default of the element type's."""

    FACTS: ClassVar[Mapping[str, str]] = {"size": "shape[{}]"}
    profiler: ClassVar[Any] = _Profiler()

    def __init__(self, bound: BoundProgram, executable: Runs, alignment: int | None = None) -> None:
        self.kept = KeptArrays()
        self._alignment = alignment
        super().__init__(bound, executable, on_cpu=True)

    @staticmethod
    def type_of(dtype: DType) -> np.dtype[Any]:
        """The type of arrays that hold ``dtype``."""
        return array_dtype(dtype)

    @staticmethod
    def address(tensor: Array | None) -> int:
        """The address of an array's first element; 0 for None."""
        return 0 if tensor is None else address_of(tensor)

    def new(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array at a cache line."""
        memory = new_bytes(span(shape, strides) * dtype.itemsize)
        return laid_out(memory, first_line(memory), dtype, shape, strides)

    def fitted(self, tensor: Array, strides: tuple[int, ...] | None) -> Array:
        """The array with these strides (None: its own), in aligned memory: itself, or a copy."""
        own = element_strides(tensor)
        strides = own if strides is None else strides
        is_laid_out = own == strides or all(
            n == 1 or a == b for n, a, b in zip(tensor.shape, own, strides, strict=True)
        )
        if (is_laid_out or not tensor.size) and self._is_aligned(tensor):
            return tensor
        made = self.new(tensor.shape, strides, tensor.dtype)
        made[...] = tensor
        return made

    def _is_aligned(self, tensor: Array) -> bool:
        if self._alignment is None:
            return tensor.flags.aligned and tensor.dtype.isnative
        return address_of(tensor) % self._alignment == 0

    def copied(self, tensor: Array) -> Array:
        """A copy of the array with the same layout."""
        made = self.new(tensor.shape, element_strides(tensor), tensor.dtype)
        made[...] = tensor
        return made

    @staticmethod
    def part(base: Array, place: Place) -> Array:
        """A part of an array's memory; its offset is relative to the array's first element."""
        return part_of(base, *place)

    @staticmethod
    def block(sizes: Mapping[int, int]) -> ConstantArrays:
        """One block of memory for constants of these sizes, by slot."""
        return ConstantArrays(sizes)


def on_arrays(
    parts: SplitProgram, ready: LoadedPrograms, platform: Platform, constant_inputs: frozenset[int] | None
) -> Called:
    """The programs of a graph on a CPU, or in the simulator, to be called with arrays that are no parameters."""

    def called(part: BoundProgram) -> ArrayGraph:
        return ArrayGraph(part, ready.executables[part.program], platform.alignment)

    main = called(parts.main)
    return main if parts.prepare is None else PreparedGraph(main, called(parts.prepare))
