"""Tensor maps, encoded by the driver into memory of our own.

The driver requires memory aligned to 64 bytes, and CUDA's header aligns the type to 128. Python's allocator places the
object of the Python bindings anywhere, so the driver's function is called past the bindings.
"""

from __future__ import annotations

import ctypes
from typing import Any

from taskmap.backend.cuda.tensor_map import TensorView

MAP_BYTES = 128
"""The size of a tensor map, and the alignment of its memory."""

_SINCE = 12000  # the version of CUDA that introduced tensor maps
_WORDS, _LONG_WORDS = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)
_Encode = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, _LONG_WORDS, _LONG_WORDS, _WORDS,
    _WORDS, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
)  # fmt: skip

_TYPES = {
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "f32": "FLOAT32",
    "f64": "FLOAT64",
    "i16": "UINT16",
    "i32": "INT32",
    "i64": "INT64",
}


class EncodedMap:
    """Memory for one tensor map, at ``address``."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = (ctypes.c_ubyte * (2 * MAP_BYTES))()
        self.address = -(-ctypes.addressof(self._memory) // MAP_BYTES) * MAP_BYTES


class MapEncoder:
    """The driver's function cuTensorMapEncodeTiled by its address; ``api``: as for Driver."""

    def __init__(self, api: Any, address: int) -> None:
        self._api = api
        self._encode = _Encode(address)

    @staticmethod
    def arguments_of_lookup() -> tuple[bytes, int, int]:
        """The arguments of cuGetProcAddress that find the function."""
        return b"cuTensorMapEncodeTiled", _SINCE, 0

    def __call__(self, view: TensorView) -> tuple[int, EncodedMap]:
        """The driver's status, and the map; beyond the tensor's edges it reads zeros."""
        api, rank, made = self._api, len(view.sizes), EncodedMap()
        swizzle = f"CU_TENSOR_MAP_SWIZZLE_{view.swizzle}B" if view.swizzle else "CU_TENSOR_MAP_SWIZZLE_NONE"
        kind = f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES.get(view.dtype.name, 'UINT8')}"
        status = self._encode(
            made.address,
            int(getattr(api.CUtensorMapDataType, kind)),
            rank,
            view.address,
            (ctypes.c_uint64 * rank)(*view.sizes),
            (ctypes.c_uint64 * rank)(*view.strides),
            (ctypes.c_uint32 * rank)(*view.box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            int(api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(getattr(api.CUtensorMapSwizzle, swizzle)),
            int(api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
            int(api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        return int(status), made
