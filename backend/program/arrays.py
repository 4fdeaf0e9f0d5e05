"""numpy's arrays as the tensors of a binding: their types, memory, addresses and parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.types import DType, dtype_named

Array = NDArray[Any]
_CACHE_LINE = 64
_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u8": "uint8", "bool": "bool", "bf16": "bfloat16",
}  # fmt: skip
_HELD = {name: dtype_named(ours) for ours, name in _NAMES.items()}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """A type by its name; types that numpy lacks come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        found: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
        return found


@lru_cache(maxsize=len(_NAMES))
def array_dtype(dtype: DType) -> np.dtype[Any]:
    """The type of arrays that hold ``dtype``."""
    return numpy_dtype(_NAMES[dtype.name])


def dtype_held(x: Array) -> DType:
    """The type that an array's elements hold."""
    return _HELD[x.dtype.name]


def element_strides(x: Array) -> tuple[int, ...]:
    """Strides in elements; row-major ones, by which nothing is read, for an array without elements."""
    if not x.size:
        return tuple(prod(x.shape[d + 1 :]) for d in range(x.ndim))
    return tuple(n // x.itemsize for n in x.strides)


def address_of(x: Array) -> int:
    """The address of an array's first element."""
    address: int = x.__array_interface__["data"][0]
    return address


def bytes_for(size: int) -> int:
    """The bytes of memory that holds ``size`` of them from a cache line on."""
    return size + _CACHE_LINE


def new_bytes(size: int) -> Array:
    """Uninitialised memory with ``size`` bytes from a cache line on, which ``first_line`` finds."""
    return np.empty(bytes_for(size), np.uint8)


def first_line(memory: Array) -> int:
    """The place in ``memory`` of the first byte at a cache line."""
    return -address_of(memory) % _CACHE_LINE


def laid_out(memory: Array, start: int, dtype: np.dtype[Any], shape: Sequence[int], strides: Sequence[int]) -> Array:
    """The tensor in ``memory``, bytes of any content, that begins at ``start``. Strides are in elements."""
    step = dtype.itemsize
    made: Array = np.ndarray(tuple(shape), dtype, memory, start, tuple(n * step for n in strides))
    return made


class _Shown:
    """An address as an array, for np.asarray, which keeps it; it keeps ``owner``."""

    def __init__(self, interface: dict[str, Any], owner: Array) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def part_of(base: Array, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """The part of an array's memory that begins ``offset`` elements after its first. Strides are in elements."""
    interface, step = dict(base.__array_interface__), base.itemsize
    start, is_read_only = interface["data"]
    interface["data"] = start + offset * step, is_read_only
    interface["shape"], interface["strides"] = tuple(shape), tuple(n * step for n in strides)
    part: Array = np.asarray(_Shown(interface, base))
    if part.dtype != base.dtype:  # the interface has no name for bf16
        return np.asarray(part.view(base.dtype))
    return part
