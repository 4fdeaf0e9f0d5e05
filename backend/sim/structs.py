"""The structures of device/abi.h and engine/state.h, for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_char_p, c_double, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

OF_WARPS = (
    "global loads", "global stores", "shared loads", "shared stores", "barriers", "named barriers", "warp barriers",
    "shuffles", "votes", "ldmatrix", "stmatrix", "mma", "wmma", "wgmma",
)  # fmt: skip
OF_THREADS = ("cp.async", "mbarrier", "TMA", "fences", "clusters", "atomics", "setmaxnreg")
INSTRUCTION_KINDS = (*OF_WARPS, *OF_THREADS)
"""The order of `tm_kind`: instructions counted once for a warp (barriers for a block, wgmma for a warpgroup) or a
thread."""


class Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint32), ("y", c_uint32), ("z", c_uint32))


class Bounds(ctypes.Structure):
    """Bounds of a buffer; region is its number plus one until the engine replaces it."""

    _fields_ = (("low", c_void_p), ("high", c_void_p), ("region", c_void_p), ("name", c_char_p))


class Argument(ctypes.Structure):
    _fields_ = (("address", c_void_p), ("bounds", ctypes.POINTER(Bounds)))


class Region(ctypes.Structure):
    _fields_ = (
        ("base", c_void_p),
        ("bytes", c_uint64),
        ("granule", c_uint32),
        ("initialised", c_uint32),
        ("tracked", c_uint32),
    )


class Run(ctypes.Structure):
    _fields_ = (
        ("entry", c_void_p),
        ("arguments", ctypes.POINTER(c_void_p)),
        ("regions", ctypes.POINTER(Region)),
        ("module", c_void_p),
        ("seconds", c_double),
        ("steps", c_uint64),
        ("region_count", c_uint32),
        ("grid", Dim3),
        ("cluster", Dim3),
        ("threads", c_uint32),
        ("shared_bytes", c_uint32),
        ("shared_granule", c_uint32),
        ("seed", c_uint32),
        ("late", c_uint32),
        ("checked", c_uint32),
        ("counted", c_uint32),
        ("workers", c_uint32),
    )


class FoundProblem(ctypes.Structure):
    _fields_ = (
        ("kind", c_uint32),
        ("count", c_uint32),
        ("site", c_uint32),
        ("other_site", c_uint32),
        ("block", Dim3),
        ("thread", Dim3),
        ("other_block", Dim3),
        ("other_thread", Dim3),
        ("has_other", c_uint32),
        ("text", c_char * 260),
    )


class Counted(ctypes.Structure):
    _fields_ = (
        ("instructions", c_uint64 * len(INSTRUCTION_KINDS)),
        ("global_read", c_uint64),
        ("global_written", c_uint64),
        ("shared_read", c_uint64),
        ("shared_written", c_uint64),
        ("copied", c_uint64),
        ("global_requests", c_uint64),
        ("global_sectors", c_uint64),
        ("global_ideal", c_uint64),
        ("shared_requests", c_uint64),
        ("shared_wavefronts", c_uint64),
        ("shared_ideal", c_uint64),
        ("tensor_operations", c_uint64),
        ("tensor_bytes", c_uint64),
        ("switches", c_uint64),
        ("blocks", c_uint64),
        ("steps", c_uint64),
    )


class TensorMap(ctypes.Structure):
    """A tensor map of TMA, in the simulator's own form."""

    _fields_ = (
        ("address", c_void_p),
        ("strides", c_uint64 * 4),
        ("sizes", c_uint32 * 5),
        ("box", c_uint32 * 5),
        ("bounds", ctypes.POINTER(Bounds)),
        ("rank", c_uint16),
        ("element_bytes", c_uint16),
        ("swizzle", c_uint16),
        ("type", c_uint8),
        ("fill_nan", c_uint8),
        ("padding", c_uint8 * 16),
    )
