"""Tensor maps of TMA in the simulator."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskmap.backend.sim import structs
from taskmap.ir.errors import InputError
from taskmap.ir.types import DType

# CUtensorMapDataType of the driver, where it has one; 8-bit types are moved as bytes.
_TYPES = {
    "u8": 0, "i8": 0, "bool": 0, "e4m3": 0, "e5m2": 0, "i16": 1, "i32": 3, "i64": 5,
    "f16": 6, "f32": 7, "tf32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
_SWIZZLES = (0, 32, 64, 128)
_LARGEST_BOX = 256


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How TMA sees a tensor: dimensions slowest first, as everywhere; the innermost is contiguous.

    array: the number of the array that holds it, from `offset` elements on. shape, strides: in elements. box: the
    extents of what one instruction moves. swizzle: 0, 32, 64 or 128 bytes. fill_nan: loads fill with NaN, not with 0,
    what lies beyond the tensor.
    """

    array: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    offset: int = 0
    fill_nan: bool = False

    def __post_init__(self) -> None:
        for wrong, why in self._rules():
            if wrong:
                raise InputError(
                    f"no tensor map of {self.dtype}{list(self.shape)} in boxes of {list(self.box)}", why=why
                )

    def _rules(self) -> Sequence[tuple[bool, str]]:
        """What cuTensorMapEncodeTiled demands."""
        size = self.dtype.bytes
        inner = self.box[-1] * size if self.box else 0
        return (
            (not 1 <= len(self.shape) <= 5, "it has one to five dimensions."),
            (not len(self.shape) == len(self.strides) == len(self.box), "shape, strides and box differ in length."),
            (self.strides[-1] != 1, "its last dimension is not contiguous."),
            (any(s * size % 16 for s in self.strides[:-1]), "strides are multiples of 16 bytes."),
            (self.offset * size % 16 != 0, "it begins at a multiple of 16 bytes."),
            (any(not 1 <= b <= _LARGEST_BOX for b in self.box), f"a box has 1 to {_LARGEST_BOX} elements a dimension."),
            (inner % 16 != 0, "rows of a box are multiples of 16 bytes."),
            (self.swizzle not in _SWIZZLES, "a swizzle is of 0, 32, 64 or 128 bytes."),
            (bool(self.swizzle) and inner > self.swizzle, "rows of a box are not longer than the swizzle."),
        )

    def encode(self, address: int, bounds: Any = None) -> structs.TensorMap:
        """The engine's form, of a tensor in memory at this address."""
        size, rank = self.dtype.bytes, len(self.shape)
        encoded = structs.TensorMap(
            address=address + self.offset * size,
            rank=rank,
            element_bytes=size,
            swizzle=self.swizzle,
            type=_TYPES[self.dtype.name],
            fill_nan=self.fill_nan and self.dtype.is_float,
        )
        encoded.sizes[:rank] = self.shape[::-1]
        encoded.box[:rank] = self.box[::-1]
        encoded.strides[: rank - 1] = [s * size for s in self.strides[-2::-1]]
        if bounds is not None:
            encoded.bounds = ctypes.pointer(bounds)
        return encoded
