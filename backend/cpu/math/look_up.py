"""Tables of 256 bytes, looked up for all bytes of a vector at once.

Two permutations of AVX512-VBMI select from the halves of the table; the highest bit of each index selects between them.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.types import Vector

_LOOK_UP = "TM_INLINE $V tm_look_up_$V(const $T *p, $U i) { return ($V){$lanes}; }"
_PERMUTED = """\
TM_INLINE $V tm_vpermi2b_$V(const $T *p, $U i) {
  u8x64 a = tm_load_u8x64((const u8 *)p), b = tm_load_u8x64((const u8 *)p + 64);
  u8x64 c = tm_load_u8x64((const u8 *)p + 128), d = tm_load_u8x64((const u8 *)p + 192);
  $U low = i, high = i;
  __asm__("vpermi2b %g2, %g1, %g0" : "+v"(low) : "v"(a), "v"(b));
  __asm__("vpermi2b %g2, %g1, %g0" : "+v"(high) : "v"(c), "v"(d));
  return ($V)tm_select_$U(($M)(($I)i < 0), high, low);
}"""


def look_up(v: Vector, vector_bytes: int) -> str | None:
    """`tm_look_up_V(p, i)`: p[i[l]] in lane l, for vectors of bytes."""
    if v.bits != 8 or v.lanes == 1:
        return None
    return v.render(_LOOK_UP, lanes=", ".join(f"p[i[{lane}]]" for lane in range(v.lanes)))


def permuted(v: Vector, vector_bytes: int) -> str | None:
    """`tm_vpermi2b_V(p, i)`: the same, for 16, 32 or 64 lanes."""
    return v.render(_PERMUTED) if v.bits == 8 and v.lanes in (16, 32, 64) else None
