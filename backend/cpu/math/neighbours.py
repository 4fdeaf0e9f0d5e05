"""Loads of each element into two lanes, as nearest neighbours and windows that do not overlap need them."""

from __future__ import annotations

from taskmap.backend.cpu.math.types import Vector

_FEWEST = 4
"""With fewer lanes, loads lane by lane are as good."""

_SHUFFLED = """\
TM_INLINE $V tm_load_twice_$V(const $T *p) {
#if (defined(__clang__) || __GNUC__ >= 12)$narrow
  $HU half = tm_load_$HU((const $W *)p);
  return ($V)__builtin_shufflevector(half, half, $taken);
#else
  return ($V){$lanes};
#endif
}"""


def load_twice(v: Vector, vector_bytes: int) -> str:
    """`tm_load_twice_V(p)`: p[l / 2] in lane l."""
    if v.bytes > vector_bytes:
        parts = f"tm_load_twice_$H(p), tm_load_twice_$H(p + {v.lanes // 4})"
        return v.render(f"TM_INLINE $V tm_load_twice_$V(const $T *p) {{ return tm_join_$V({parts}); }}")
    taken = [lane // 2 for lane in range(v.lanes)]
    lanes = ", ".join(f"p[{i}]" for i in taken)
    if v.is_mask or v.bits < 16 or v.lanes < _FEWEST:
        return v.render(f"TM_INLINE $V tm_load_twice_$V(const $T *p) {{ return ($V){{{lanes}}}; }}")
    # A shuffle of integers: gcc 12 has instructions for that, whatever the type.
    narrow = " && defined(__AVX512BW__)" if v.bits == 16 else ""
    half, order = v.of(f"u{v.bits}").half.name, ", ".join(map(str, taken))
    return v.render(_SHUFFLED, narrow=narrow, HU=half, W=f"u{v.bits}", taken=order, lanes=lanes)
