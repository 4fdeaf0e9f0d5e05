"""Codes of four bits as bf16, looked up with AVX-512 by one permutation of a table of all of them.

tm_code_i16xL_to_bf16xL(x)   the number in the lowest four bits of each lane: the cast of x & 15

The permutation looks at five bits, so the table holds the sixteen numbers twice, and no mask is needed.
"""

from __future__ import annotations

from string import Template

from taskmap.backend.cpu.math.types import Vector

_PLAIN = "TM_INLINE $T tm_code_${S}_to_$T($S x) { return tm_cast_${S}_to_$T(x & tm_splat_$S(15)); }"
_PERMUTED = """\
TM_INLINE $T tm_code_${S}_to_$T($S x) {
  const u16x32 table = {$numbers, $numbers};
  $T y;
  __asm__("vpermw %2, %1, %0" : "=v"(y) : "v"(x), "v"(table));
  return y;
}"""


def code(source: Vector, target: Vector, vector_bytes: int) -> str | None:
    """The function for i16 and bf16; None for other types."""
    if (source.dtype, target.dtype) != ("i16", "bf16"):
        return None
    text = _PERMUTED if vector_bytes == source.bytes == 64 else _PLAIN
    numbers = ", ".join(hex(_bits(n)) for n in range(16))
    return Template(text).substitute(S=source.name, T=target.name, numbers=numbers)


def _bits(n: int) -> int:
    """A small number as bf16: 127 is the exponent of 1, and seven bits follow the leading one."""
    power = n.bit_length() - 1
    return 0 if n == 0 else (127 + power << 7) + (n - (1 << power) << 7 - power)
