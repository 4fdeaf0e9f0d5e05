"""ONNX element types: the taskmap type that holds each, and conversions of arrays to and from it.

Types that taskmap lacks are held in wider ones: uint16 in i32, uint32 in i64, integers of four and two bits in eight,
floats of eight and four bits in f32. uint64 is held in i64 bit by bit, a string as its number in i64 (``strings``). No
type holds complex numbers: they exist only as known values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from taskmap.graph.importers.onnx.strings import STRINGS
from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8

Array = NDArray[Any]
LARGEST_SIZE = 1 << 40
"""An upper limit for every dimension, even in a tensor without elements."""
STRING = int(TensorProto.STRING)

HELD = {
    int(TensorProto.FLOAT): f32,
    int(TensorProto.DOUBLE): f64,
    int(TensorProto.FLOAT16): f16,
    int(TensorProto.BFLOAT16): bf16,
    int(TensorProto.BOOL): boolean,
    int(TensorProto.INT8): i8,
    int(TensorProto.INT16): i16,
    int(TensorProto.INT32): i32,
    int(TensorProto.INT64): i64,
    int(TensorProto.UINT8): u8,
    int(TensorProto.UINT16): i32,
    int(TensorProto.UINT32): i64,
    int(TensorProto.UINT64): i64,
}
"""Maps each element type to the type that holds it."""
MASKS = {int(TensorProto.UINT16): 0xFFFF, int(TensorProto.UINT32): 0xFFFFFFFF}
NARROW_INTEGERS = {
    int(getattr(TensorProto, name)): (held, low, high)
    for name, held, low, high in (("INT4", i8, -8, 7), ("UINT4", u8, 0, 15), ("INT2", i8, -2, 1), ("UINT2", u8, 0, 3))
    if hasattr(TensorProto, name)
}
"""Integers of fewer than eight bits: the type that holds them, and their range."""
NARROW_FLOATS = frozenset(
    int(getattr(TensorProto, name))
    for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT4E2M1")
    if hasattr(TensorProto, name)
)
HELD.update({elem: held for elem, (held, _, _) in NARROW_INTEGERS.items()})
HELD.update(dict.fromkeys(NARROW_FLOATS, f32))

PLAIN = {
    held: elem
    for elem, held in HELD.items()
    if elem not in MASKS and elem not in NARROW_INTEGERS and elem not in NARROW_FLOATS and elem != TensorProto.UINT64
}
"""Maps each of taskmap's types to the element type that equals it."""


@dataclass(frozen=True, slots=True)
class OnnxTensorType:
    """A model's description of a tensor: element type, and for each dimension a size, a name, or None."""

    elem: int
    shape: tuple[int | str | None, ...] | None


def elem_name(elem: int) -> str:
    """The name of an element type, such as FLOAT16."""
    try:
        return str(TensorProto.DataType.Name(elem)).lower()
    except ValueError:
        return f"element type {elem}"


def held_in(elem: int) -> DType:
    """The type that holds ``elem``. Raises UnsupportedError for complex numbers and unknown types."""
    if elem == STRING:
        return i64
    if elem not in HELD:
        raise UnsupportedError(f"tensors of {elem_name(elem)}", why="taskmap has no type that holds them")
    return HELD[elem]


def numpy_type(elem: int) -> np.dtype[Any]:
    """numpy's type for an element type, or ml_dtypes' where numpy has none. Raises UnsupportedError for others."""
    if elem == STRING:
        return np.dtype(object)
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    except KeyError:
        raise UnsupportedError(f"tensors of {elem_name(elem)}") from None


def to_held(array: Array, elem: int) -> Array:
    """``array`` of type ``elem``, converted to the type that holds it; bf16 keeps its own type."""
    dtype = held_in(elem)
    if elem == STRING:
        return STRINGS.numbers(array)
    if elem == TensorProto.UINT64:
        return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)
    if elem == TensorProto.BFLOAT16:
        return array if array.dtype == ml_dtypes.bfloat16 else array.astype(ml_dtypes.bfloat16)
    return array.astype(_HELD_NUMPY[dtype.name], copy=False)


def from_held(array: Array, elem: int) -> Array:
    """The reverse of ``to_held``."""
    if elem == STRING:
        return STRINGS.texts(array)
    if elem == TensorProto.UINT64:
        return array.view(np.uint64)
    return array.astype(numpy_type(elem), copy=False)


def held_alike(elem: int) -> bool:
    """True if tensors of ``elem`` are held in numpy's type for them."""
    return elem in HELD and numpy_type(elem) == np.dtype(_HELD_NUMPY[HELD[elem].name])


_HELD_NUMPY: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}


def dense(array: Array) -> Array:
    """``array`` in C order, in native byte order and aligned: itself if possible, else a copy."""
    if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def held_form(value: Any, dtype: DType) -> Array:
    """A value from ``graph.reference`` in the type that holds ``dtype``: bf16 in its own."""
    array = np.asarray(value)
    return array.astype(ml_dtypes.bfloat16) if dtype.name == "bf16" else array


def reference_form(array: Array) -> Array:
    """The reverse of ``held_form``: bf16 in f32."""
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


def empty(shape: tuple[int, ...], dtype: DType) -> Array:
    """An array of zeros. Raises ImportGraphError for sizes that no tensor can have."""
    if any(n > LARGEST_SIZE for n in shape):
        raise ImportGraphError(f"a tensor of shape {list(shape)}", why="no tensor can have such sizes.")
    return np.zeros(shape, _HELD_NUMPY[dtype.name])
