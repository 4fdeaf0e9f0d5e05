"""Element types and PyTorch's promotion rules.

Source of the promotion rules: PyTorch documentation, "Tensor Attributes", section "type promotion".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taskmap.ir.errors import TypeMismatchError

__all__ = [
    "ALL_DTYPES", "DType", "TensorType", "bf16", "boolean", "compute_type", "dtype_named", "e4m3", "e5m2", "f16",
    "f32", "f64", "i8", "i16", "i32", "i64", "is_exact", "promote", "significant_bits", "tf32", "u8",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type: its short name, its size in bits, and its kind (f float, i signed, u unsigned, b bool)."""

    name: str
    bits: int
    kind: str

    def __eq__(self, other: object) -> bool:
        # Types are compared at every node that is built; nearly always they are the same object or differ in name.
        return self is other or (isinstance(other, DType) and self.name == other.name)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        """True for f64, f32, f16 and bf16, and for the floats of tensor instructions."""
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """True for the integer types; bool is not one of them."""
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        """True for bool."""
        return self.kind == "b"

    def __getitem__(self, shape: Any) -> TensorType:
        """f32[m, n]: the type of a tensor; f32[()]: of one without dimensions."""
        return TensorType(self, shape if isinstance(shape, tuple) else (shape,))

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor: element type, shape (ints or expressions), and strides in elements (None: row-major)."""

    dtype: DType
    shape: tuple[Any, ...]
    strides: tuple[Any, ...] | None = None

    def strided(self, *strides: Any) -> TensorType:
        """The same tensor type with other strides, in elements, one per dimension."""
        if len(strides) != len(self.shape):
            raise TypeMismatchError(f"{self} has {len(self.shape)} dimensions, but is given {len(strides)} strides")
        return TensorType(self.dtype, self.shape, strides)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


f64 = DType("f64", 64, "f")
"""IEEE 754 double precision."""
f32 = DType("f32", 32, "f")
"""IEEE 754 single precision."""
f16 = DType("f16", 16, "f")
"""IEEE 754 half precision."""
bf16 = DType("bf16", 16, "f")
"""bfloat16: the exponent of f32, 8 bits of significand."""
i64 = DType("i64", 64, "i")
"""Signed integers of 64 bits."""
i32 = DType("i32", 32, "i")
"""Signed integers of 32 bits."""
i16 = DType("i16", 16, "i")
"""Signed integers of 16 bits."""
i8 = DType("i8", 8, "i")
"""Signed integers of 8 bits."""
u8 = DType("u8", 8, "u")
"""Unsigned integers of 8 bits."""
boolean = DType("bool", 8, "b")
"""Truth values, stored as bytes 0 and 1."""

ALL_DTYPES = (f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean)
"""The types of tensors."""

tf32 = DType("tf32", 32, "f")
"""TensorFloat-32, the operands of tensor-core products of f32: its exponent, 11 bits of significand. Not of tensors."""
e4m3 = DType("e4m3", 8, "f")
"""Float of 8 bits: 4 of exponent, 3 of mantissa; torch.float8_e4m3fn."""
e5m2 = DType("e5m2", 8, "f")
"""Float of 8 bits: 5 of exponent, 2 of mantissa; torch.float8_e5m2."""

FLOAT8 = (e4m3, e5m2)
"""8-bit floats, named by their bits of exponent and mantissa: torch's float8_e4m3fn and float8_e5m2. Tensors may hold
them; they are converted from and to f32, and only tensor instructions compute with them otherwise."""

OPERAND_DTYPES = (tf32, *FLOAT8)
"""Types that only tensor instructions compute with: f32 with ten bits of mantissa, and 8-bit floats."""

_BY_NAME = {t.name: t for t in (*ALL_DTYPES, *OPERAND_DTYPES)}


def dtype_named(name: str) -> DType:
    """The type with this name ("f32", "bool", ...). Raises TypeMismatchError for an unknown name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise TypeMismatchError(f"unknown element type {name!r}; taskmap has {', '.join(_BY_NAME)}")


def promote(a: DType, b: DType) -> DType:
    """The common type of two operands of equal rank of abstraction, as torch.promote_types(a, b).

    float beats integer beats bool; f16 with bf16 gives f32; u8 with a signed type gives the next wider signed type.
    """
    if a == b:
        return a
    if a.is_bool:
        return b
    if b.is_bool:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return f32 if a.bits == b.bits else max(a, b, key=lambda t: t.bits)
    if a.kind == b.kind:
        return max(a, b, key=lambda t: t.bits)
    signed = a if a.kind == "i" else b
    return i16 if signed.bits == 8 else signed


def is_exact(a: DType, b: DType) -> bool:
    """True if every value of type ``a`` is also a value of type ``b``."""
    if a.is_bool or a == b:
        return True
    if b.is_float:
        in_range = not a.is_float or _FLOATS[b.name][1] >= _FLOATS[a.name][1]
        return in_range and significant_bits(b) >= significant_bits(a)
    if a.is_float or b.is_bool:
        return False
    return b.bits > a.bits if a.kind != b.kind else b.bits >= a.bits and a.kind == b.kind


def significant_bits(t: DType) -> int:
    """Bits of precision: of the significand of a float, of the magnitude of an integer."""
    return _FLOATS[t.name][0] if t.is_float else t.bits - (t.kind == "i")


_FLOATS = {
    "f64": (53, 11),
    "f32": (24, 8),
    "tf32": (11, 8),
    "f16": (11, 5),
    "bf16": (8, 8),
    "e4m3": (4, 4),
    "e5m2": (3, 5),
}
"""Bits of the significand, with the leading one, and of the exponent."""


def compute_type(dtype: DType) -> DType:
    """The type in which arithmetic on ``dtype`` is carried out: f16 and bf16 are computed in f32 and rounded at the
    end.
    """
    return f32 if dtype in (f16, bf16) else dtype
