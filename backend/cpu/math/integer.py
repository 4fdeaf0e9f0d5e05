"""Functions of integers that wrap as torch's do: arithmetic that may wrap is unsigned, because signed overflow is
undefined in C.

A division by zero, which torch rejects, must not stop the process: its quotient is -1 (255 for u8), and the remainder
of x by 0 is x.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.types import Vector

_IDENTITY = ("floor", "ceil", "trunc", "round")

_UNARY = {
    "abs": "  return tm_select_$V(x < 0, tm_neg_$V(x), x);",
    "neg": "  return ($V)-($U)x;",
    "square": "  return tm_mul_$V(x, x);",
    "sign": "  return tm_select_$V(x > 0, tm_splat_$V(1), tm_select_$V(x < 0, tm_splat_$V(-1), tm_splat_$V(0)));",
}
_UNARY_UNSIGNED = {"abs": "  return x;", "sign": "  return tm_select_$V(x > 0, tm_splat_$V(1), tm_splat_$V(0));"}
_BINARY = {
    "add": "  return ($V)(($U)x + ($U)y);",
    "sub": "  return ($V)(($U)x - ($U)y);",
    "mul": "  return ($V)(($U)x * ($U)y);",
    "max": "  return tm_select_$V(x > y, x, y);",
    "min": "  return tm_select_$V(x < y, x, y);",
    "fmod": "  return tm_sub_$V(x, tm_mul_$V(y, tm_trunc_div_$V(x, y)));",
    "remainder": "  return tm_sub_$V(x, tm_mul_$V(y, tm_floor_div_$V(x, y)));",
}
_SCALAR = {
    "mul": "  return ($V)((u64)x * (u64)y);",
    "trunc_div": """\
  if (y == 0) return ($V)-1;
  if (y == ($V)-1 && ($V)-1 < 0) return tm_neg_$V(x);
  return ($V)(x / y);""",
    "floor_div": """\
  if (y == 0) return ($V)-1;
  if (y == ($V)-1 && ($V)-1 < 0) return tm_neg_$V(x);
  return ($V)(x / y - (x % y != 0 && (x < 0) != (y < 0)));""",
    # Squaring; a negative exponent gives a fraction, truncated to 0 for all bases but 1 and -1.
    "pow": """\
  if (y < 0) return x == 1 ? 1 : x == ($V)-1 ? (y & 1 ? ($V)-1 : 1) : 0;
  u64 power = 1, base = (u64)x;
  for (u64 n = (u64)y; n != 0; n >>= 1) {
    if (n & 1) power *= base;
    base *= base;
  }
  return ($V)power;""",
}
# Exact, though the division may be off by some units of the last place, as with -ffast-math: half a unit more in the
# dividend keeps a quotient of 16-bit (32-bit) integers far from all integers, for f32 (f64).
_QUOTIENT = {
    "floor_div": """\
  $W a = tm_cast_${V}_to_$W(x), b = tm_cast_${V}_to_$W(y);
  $W q = tm_floor_$W((tm_select_$W(b < 0, -a, a) + 0.5$f) / tm_abs_$W(b));
""",
    "trunc_div": """\
  $W a = tm_cast_${V}_to_$W(x), b = tm_cast_${V}_to_$W(y);
  $W q = tm_floor_$W((tm_abs_$W(a) + 0.5$f) / tm_abs_$W(b));
  q = tm_select_$W((a < 0) != (b < 0), -q, q);
""",
}
# The same of 64-bit integers below 2^51, which become f64 and back by a number whose last place is 1; others go lane by
# lane.
_TO_F64 = "tm_from_bits_$W(($U){} + 0x4338000000000000ull) - 0x1.8p52"
_QUOTIENT_64 = {
    name: f"""\
  $M large = (((($U)x + (1ull << 51)) | (($U)y + (1ull << 51))) >> 52) != 0;
  $W a = {_TO_F64.format("x")}, b = {_TO_F64.format("y")};
  $W q = tm_floor_$W(({dividend} + 0.5) / tm_abs_$W(b));
{sign}  $V r = ($V)(tm_bits_$W(q + 0x1.8p52) - 0x4338000000000000ull);
  r = tm_select_$V(y == 0, tm_splat_$V(-1), r);
  return __builtin_expect(tm_any_$M(large), 0) ? tm_each_{name}_$V(x, y) : r;"""
    for name, dividend, sign in (
        ("floor_div", "tm_select_$W(b < 0, -a, a)", ""),
        ("trunc_div", "tm_abs_$W(a)", "  q = tm_select_$W((a < 0) != (b < 0), -q, q);\n"),
    )
}
LANEWISE = {f"each_{name}": name for name in _QUOTIENT_64}
"""Functions that are others lane by lane, by name."""
_QUOTIENT_END = "  return tm_select_$V(y == 0, tm_splat_$V(-1), tm_cast_${W}_to_$V(q));"
_PREDICATES = {
    "isnan": "  return ($M){0};",
    "isinf": "  return ($M){0};",
    "isfinite": "  return tm_not_$M(($M){0});",
    "signbit": "  return x < 0;",
}


def integer_body(name: str, v: Vector) -> str | None:
    """Body of the function `name` of integers `x` (and `y`); None if it must go lane by lane or does not exist."""
    if name in _IDENTITY:
        return "  return x;"
    if v.dtype[0] != "i" and name in _UNARY_UNSIGNED:
        return v.render(_UNARY_UNSIGNED[name])
    if v.lanes == 1 and name in _SCALAR:
        return v.render(_SCALAR[name])
    if name in _QUOTIENT and v.bits <= 32:
        wide, suffix = ("f64", "") if v.bits == 32 else ("f32", "f")
        return v.render(_QUOTIENT[name] + _QUOTIENT_END, W=v.of(wide).name, f=suffix)
    if name in _QUOTIENT_64:
        return v.render(_QUOTIENT_64[name], W=v.of("f64").name)
    body = _UNARY.get(name) or _BINARY.get(name) or _PREDICATES.get(name)
    return v.render(body) if body else None


def has_scalar(name: str) -> bool:
    """True if the function `name` of integers can be computed lane by lane."""
    return name in _SCALAR
