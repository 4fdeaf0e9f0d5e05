"""The semantics of a TMA copy: a box of a tensor, 0 outside the tensor, its 16-byte chunks swizzled.

Boxes and tensors are numpy arrays, outermost dimension first; coordinates are innermost first, as instructions take
them. Addresses in shared memory are relative to a multiple of 1024 bytes. After: PTX ISA, "Tensors", "Swizzling
Modes"; that a box begins at a multiple of 16 bytes of its tensor's rows, and if it is stored within the tensor, was
seen on an H100, which ends other kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import InputError
from taskmap.ir.isa.wgmma_descriptor import swizzled

Array = NDArray[Any]


def load_box(tensor: Array, box: Sequence[int], coordinates: Sequence[int], bytes: int, swizzle: int = 0) -> Array:
    """The elements of a box in the order of shared memory. bytes: of an element.

    Raises InputError for a box that TMA cannot copy.
    """
    _check(tensor.shape, box, coordinates, bytes, swizzle)
    whole = np.zeros(tuple(box), tensor.dtype)
    inside, there = _overlap(tensor.shape, box, coordinates)
    whole[inside] = tensor[there]
    shared = np.zeros(whole.size, tensor.dtype)
    shared[_places(whole.size, bytes, swizzle)] = whole.ravel()
    return shared


def store_box(
    tensor: Array,
    box: Sequence[int],
    coordinates: Sequence[int],
    shared: Array,
    bytes: int,
    swizzle: int = 0,
    *,
    add: bool = False,
) -> Array:
    """The tensor after a box from shared memory has been stored to it, or added."""
    _check(tensor.shape, box, coordinates, bytes, swizzle)
    if min(coordinates) < 0:
        why = f"it is stored to {tuple(coordinates)}, before the tensor."
        raise InputError(f"TMA cannot copy a box {tuple(box)} of elements of {bytes} bytes", why=why)
    whole = shared[_places(shared.size, bytes, swizzle)].reshape(tuple(box))
    inside, there = _overlap(tensor.shape, box, coordinates)
    result: Array = tensor.copy()
    result[there] = tensor[there] + whole[inside] if add else whole[inside]
    return result


def _overlap(
    shape: Sequence[int], box: Sequence[int], coordinates: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of the box inside the tensor, as slices of the box and of the tensor."""
    inside, there = [], []
    for size, extent, at in zip(shape, box, reversed(coordinates), strict=True):
        first, last = max(at, 0), max(min(at + extent, size), 0)
        count = max(last - first, 0)
        inside.append(slice(first - at, first - at + count))
        there.append(slice(first, first + count))
    return tuple(inside), tuple(there)


def _places(count: int, bytes: int, swizzle: int) -> Array:
    """The position in shared memory of each element of a dense box."""
    return np.array([swizzled(i * bytes, swizzle) // bytes for i in range(count)])


def _check(shape: Sequence[int], box: Sequence[int], coordinates: Sequence[int], bytes: int, swizzle: int) -> None:
    what = f"TMA cannot copy a box {tuple(box)} of elements of {bytes} bytes"
    if not len(shape) == len(box) == len(coordinates) or not 1 <= len(box) <= 5:
        raise InputError(
            what, why=f"the tensor is {tuple(shape)}, the coordinates {tuple(coordinates)}: 1 to 5 of each."
        )
    if any(not 1 <= extent <= 256 for extent in box):
        raise InputError(what, why="each extent is 1 to 256.")
    if coordinates[0] * bytes % 16:
        raise InputError(what, why=f"it begins {coordinates[0] * bytes} bytes into a row, no multiple of 16.")
    inner = box[-1] * bytes
    if inner % 16:
        raise InputError(what, why=f"its rows have {inner} bytes, which is not a multiple of 16.")
    if swizzle and inner != swizzle:
        raise InputError(what, why=f"its rows have {inner} bytes, but the swizzle spans {swizzle}.")
