"""The C types of generated CPU code: scalars by dtype, vectors of 1 to 64 lanes, and their names.

A scalar type is named after its dtype (`f32`), a vector type after dtype and lanes (`f32x16`). The mask of a vector,
`m32x16`, holds in each lane 0 or -1 of the element's width: the result of a comparison of GNU C vectors. With one lane
every type is the plain scalar, and a mask is an `int`, 0 or 1, so the same text serves any number of lanes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import Template

LANES = (1, 2, 4, 8, 16, 32, 64)

SCALAR_TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "_Float16",
    "bf16": "unsigned short",
    "i64": "long long",
    "i32": "int",
    "i16": "short",
    "i8": "signed char",
    "u64": "unsigned long long",
    "u32": "unsigned int",
    "u16": "unsigned short",
    "u8": "unsigned char",
    "b8": "unsigned char",
    "fa8": "unsigned char",
    "fb8": "unsigned char",
}
"""fa8 and fb8 are the bits of e4m3 and e5m2."""
SELDOM = ("f16", "fa8", "fb8")
"""Types that are defined only if they are used."""
MASKS = ("m64", "m32", "m16", "m8")

_DTYPE = "f64|f32|f16|bf16|f[ab]8|[iu](?:64|32|16|8)|b8|m(?:64|32|16|8)"
_LANES = "|".join(map(str, LANES))
_CONSTANT = re.compile(r"-?\d[\w.]*(?:p[+-]?\w+)?")
_VECTOR = re.compile(rf"({_DTYPE})x({_LANES})")

# -Wpsabi would warn of vector arguments of functions that are always inlined, whose ABI does not matter. One note of
# gcc's heeds no pragma: where vectors wider than a register are used, it takes the flag -Wno-psabi to silence it.
PREAMBLE = "\n".join(
    [
        '#pragma GCC diagnostic ignored "-Wpsabi"',
        "#define TM_INLINE static inline __attribute__((always_inline))",
        *(f"typedef {c} {name};" for name, c in SCALAR_TYPES.items() if name not in SELDOM),
    ]
)


@dataclass(frozen=True, slots=True)
class Vector:
    """One vector type: a dtype by its C name (`f32`, `b8`, `m32`, ...) and a number of lanes, 1 for the scalar."""

    dtype: str
    lanes: int

    @property
    def name(self) -> str:
        """Name of the C type, `f32x16`."""
        return f"{self.dtype}x{self.lanes}"

    @property
    def bits(self) -> int:
        """Width of one lane, in bits."""
        return int(re.sub(r"\D", "", self.dtype))

    @property
    def bytes(self) -> int:
        """Size of the whole vector, in bytes."""
        return self.bits // 8 * self.lanes

    @property
    def is_mask(self) -> bool:
        return self.dtype in MASKS

    @property
    def is_half(self) -> bool:
        """True if the elements are 16-bit floats, which are stored as such and computed in f32."""
        return self.dtype in ("f16", "bf16")

    @property
    def is_float(self) -> bool:
        return self.dtype in ("f64", "f32", "f16", "bf16")

    @property
    def element(self) -> str:
        """C type of one lane."""
        if not self.is_mask:
            return self.dtype
        return "i32" if self.lanes == 1 else f"i{self.bits}"

    def of(self, dtype: str) -> Vector:
        """As many lanes of `dtype`."""
        return Vector(dtype, self.lanes)

    def wide(self, lanes: int) -> Vector:
        """`lanes` lanes of the same dtype."""
        return Vector(self.dtype, lanes)

    @property
    def half(self) -> Vector:
        """The type of half as many lanes."""
        return self.wide(self.lanes // 2)

    @property
    def mask(self) -> Vector:
        return self.of(f"m{self.bits}")

    def render(self, template: str, **more: str) -> str:
        """Fills in a template of C.

        $V this type, $D its dtype, $T its element, $L its lanes, $M its mask, $I and $U the signed and unsigned
        integers of its width, $H the type of half as many lanes, $F as many lanes of f32, and the names in `more`.
        """
        names = {
            "V": self.name,
            "D": self.dtype,
            "T": self.element,
            "L": str(self.lanes),
            "M": self.mask.name,
            "I": self.of(f"i{self.bits}").name,
            "U": self.of(f"u{self.bits}").name,
            "H": self.half.name,
            "F": self.of("f32").name,
        }
        return Template(template).substitute(names, **more)


def parse_vector(name: str) -> Vector | None:
    """The vector type called `name`, or None if there is none."""
    match = _VECTOR.fullmatch(name)
    return Vector(match[1], int(match[2])) if match else None


def typedef(name: str) -> str:
    """The definition of the type `f32x16`, or of `f32x16_u`, through which arrays of f32 are read at any address."""
    vector = parse_vector(name.removesuffix("_u"))
    assert vector is not None
    if vector.lanes == 1:
        return f"typedef {vector.element} {name};"
    size = f"vector_size({vector.bytes})"
    if name.endswith("_u"):
        return f"typedef {vector.element} {name} __attribute__(({size}, aligned({vector.bits // 8}), may_alias));"
    return f"typedef {vector.element} {name} __attribute__(({size}));"


def fused(x: str, y: str, z: str, vector: str = "$V") -> str:
    """C of x * y + z, rounded once if the CPU can; constants among the operands become vectors."""
    operands = (f"tm_splat_{vector}({e})" if _CONSTANT.fullmatch(e) else e for e in (x, y, z))
    return f"tm_fma_{vector}({', '.join(operands)})"


def horner(name: str, x: str, coefficients: str) -> str:
    """C that declares ``name`` as the polynomial in ``x`` with these coefficients, highest power first."""
    first, second, *rest = coefficients.split()
    lines = [f"  $V {name} = {fused(x, first, second)};", *(f"  {name} = {fused(name, x, c)};" for c in rest)]
    return "\n".join(lines) + "\n"
