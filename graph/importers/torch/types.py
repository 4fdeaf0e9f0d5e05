"""torch's element types as taskmap's, and the tensors that taskmap cannot hold."""

from __future__ import annotations

import torch

from taskmap.ir.types import FLOAT8, DType, bf16, boolean, e4m3, e5m2, f16, f32, f64, i8, i16, i32, i64, u8

_KNOWN = {
    torch.float64: f64,
    torch.float32: f32,
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.int64: i64,
    torch.int32: i32,
    torch.int16: i16,
    torch.int8: i8,
    torch.uint8: u8,
    torch.bool: boolean,
    torch.float8_e4m3fn: e4m3,
    torch.float8_e5m2: e5m2,
}
_SATURATES = not torch.tensor(1e3).to(torch.float8_e4m3fn).isnan().item()
"""True if this PyTorch converts numbers too large for e4m3 to its largest number, as taskmap does. Before 2.13 it
converted them to NaN."""
_TORCH = {ours: theirs for theirs, ours in _KNOWN.items()}


def dtype_of(dtype: torch.dtype) -> DType:
    """taskmap's type, or an opaque type (kind "x"), which only externs take, for a type that taskmap does not have."""
    known = _KNOWN.get(dtype)
    return known if known is not None else DType(str(dtype).removeprefix("torch."), dtype.itemsize * 8, "x")


def torch_dtype(dtype: DType) -> torch.dtype:
    """torch's type for one of taskmap's types."""
    return _TORCH[dtype]


CPU = torch.device("cpu")


def refusal(
    value: torch.Tensor, empty: bool = False, device: torch.device = CPU, read: bool = False, moved: bool = False
) -> str | None:
    """The reason why taskmap cannot compute with a tensor like ``value`` on ``device``, or None.

    ``empty`` allows tensors without elements; ``read`` allows 0-d CPU tensors, which operators take as numbers;
    ``moved`` allows eight-bit floats, which are only moved and converted.
    """
    if value.dtype not in _KNOWN or (_KNOWN[value.dtype] in FLOAT8 and not moved):
        return f"element type {str(value.dtype).removeprefix('torch.')}"
    if value.dtype == torch.float8_e4m3fn and not _SATURATES:
        return "element type float8_e4m3fn, which this version of PyTorch rounds differently"
    if value.layout != torch.strided:
        return f"layout {str(value.layout).removeprefix('torch.')}"
    if value.device != device and not (read and value.device == CPU and value.dim() == 0):
        return f"device {value.device}"
    if not empty and any(n == 0 for n in value.shape if isinstance(n, int)):
        return "a tensor without elements"
    return None
