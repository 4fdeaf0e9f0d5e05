"""Random operands of a tunable operator, in the layout that its kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Buffer, Var
from taskmap.ir.types import bf16

Array = npt.NDArray[Any]
_NONE: Mapping[Var, int] = MappingProxyType({})
_OFTEN = -0.8
_KINDS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "bool": np.bool_}


@dataclass(frozen=True, slots=True, eq=False)
class BenchOperand:
    """The memory of one buffer: ``flat`` as stored: numpy's float16, or the bits of bf16. dims: symbolic sizes."""

    buffer: Buffer
    flat: Array
    dims: Mapping[Var, int]

    @property
    def address(self) -> int:
        """The address of the first element."""
        return int(self.flat.ctypes.data)

    def values(self) -> Array:
        """The logical tensor, in float64."""
        shape = [size_of(d, self.dims) for d in self.buffer.shape]
        steps = self.buffer.strides or [prod(shape[d + 1 :]) for d in range(len(shape))]
        bytes_ = [size_of(s, self.dims) * self.flat.itemsize for s in steps]
        view = np.lib.stride_tricks.as_strided(self.flat, shape, bytes_)
        if self.buffer.dtype == bf16:
            return (view.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return view.astype(np.float64)

    def poison(self) -> None:
        """Fill it with values that no result can contain: all bits set, which is NaN in every float type."""
        self.flat.view(np.uint8)[...] = 0xFF


def operand(buffer: Buffer, draw: np.random.Generator | None, dims: Mapping[Var, int] = _NONE) -> BenchOperand:
    """Memory for ``buffer``, aligned to a cache line. With ``draw``: uniform in [-1, 1), or mostly true."""
    count = prod(size_of(d, dims) for d in buffer.shape)
    kind = np.dtype(_KINDS[buffer.dtype.name])
    raw = np.empty(count * kind.itemsize + 64, np.uint8)
    first = -raw.ctypes.data % 64
    made = BenchOperand(buffer, raw[first : first + count * kind.itemsize].view(kind), dims)
    if draw is not None:
        values: Array = draw.random(count, np.float32) * 2 - 1
        if buffer.dtype.is_bool:
            values = values > _OFTEN
        made.flat[...] = values.view(np.uint32) >> 16 if buffer.dtype == bf16 else values
    return made
