"""Tensor maps of TMA in the simulator's form."""

from __future__ import annotations

import ctypes

from taskmap.backend.cuda.tensor_map import TensorView
from taskmap.backend.sim import structs
from taskmap.ir.errors import InputError

# CUtensorMapDataType of the driver, where it has one; 8-bit types are moved as bytes.
_TYPES = {
    "u8": 0, "i8": 0, "bool": 0, "e4m3": 0, "e5m2": 0, "i16": 1, "i32": 3, "i64": 5,
    "f16": 6, "f32": 7, "tf32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
_SWIZZLES = (0, 32, 64, 128)
_LARGEST_BOX = 256


def encode(view: TensorView, bounds: structs.Bounds | None = None) -> structs.TensorMap:
    """The engine's form of a view; bounds: of the array that contains it, if accesses are checked.

    Raises InputError for every view that cuTensorMapEncodeTiled rejects.
    """
    _check(view)
    size, rank = view.dtype.bytes, len(view.sizes)
    encoded = structs.TensorMap(
        address=view.address, rank=rank, element_bytes=size, swizzle=view.swizzle, type=_TYPES[view.dtype.name]
    )
    encoded.sizes[:rank] = view.sizes
    encoded.box[:rank] = view.box
    encoded.strides[: rank - 1] = view.strides
    if bounds is not None:
        encoded.bounds = ctypes.pointer(bounds)
    return encoded


def _check(view: TensorView) -> None:
    row = view.box[0] * view.dtype.bytes if view.box else 0
    rules = (
        (not 1 <= len(view.sizes) <= 5, "it has one to five dimensions."),
        (not len(view.sizes) == len(view.strides) + 1 == len(view.box), "sizes, strides and box differ in length."),
        (any(stride % 16 for stride in view.strides), "strides are multiples of 16 bytes."),
        (view.address % 16 != 0, "it begins at a multiple of 16 bytes."),
        (any(not 1 <= extent <= _LARGEST_BOX for extent in view.box), f"a box has 1 to {_LARGEST_BOX} elements each."),
        (row % 16 != 0, "rows of a box are multiples of 16 bytes."),
        (view.swizzle not in _SWIZZLES, "a swizzle is of 0, 32, 64 or 128 bytes."),
        (bool(view.swizzle) and row > view.swizzle, "rows of a box are not longer than the swizzle."),
    )
    for wrong, why in rules:
        if wrong:
            raise InputError(f"no tensor map of {view.dtype}{list(view.sizes)} in boxes of {list(view.box)}", why=why)
