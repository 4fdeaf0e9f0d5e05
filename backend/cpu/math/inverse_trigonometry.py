"""asin, acos, atan and atan2 in f32 and f64: polynomials where the argument is small, and identities elsewhere (J.-M.
Muller, "Elementary Functions", 3rd edition, chapter 11). pi/2 and pi are the difference of two numbers."""

from __future__ import annotations

import re

from taskmap.backend.cpu.math.types import fused, horner

_NAMES = ("half_pi", "half_rest", "pi", "rest")
_CONSTANTS = {
    "f32": ("0x1.921fb6p+0f", "0x1.777a5cp-25f", "0x1.921fb6p+1f", "0x1.777a5cp-24f"),
    "f64": ("0x1.921fb54442d18p+0", "-0x1.1a62633145c07p-54", "0x1.921fb54442d18p+1", "-0x1.1a62633145c07p-53"),
}
"""The constants that the bodies leave open, by element type."""

# atan(q) = q + q^3 p(q^2) for 0 <= q <= 1 (f64: tan(pi/8)), in arc + less
_ATAN_CORE = {
    "f32": "  $V s = q * q;\n"
    + horner(
        "p",
        "s",
        "0x1.2968bp-10f -0x1.e6a1p-8f 0x1.753042p-6f -0x1.7080bap-5f 0x1.150ap-4f -0x1.6953bcp-4f 0x1.c5117p-4f "
        "-0x1.24762p-3f 0x1.99981cp-3f -0x1.555552p-2f",
    )
    + f"  $V arc = {fused('q * s', 'p', 'q')};\n",
    "f64": "  $V s = q * q;\n"
    + horner(
        "p",
        "s",
        "0x1.e84dbcb96b976p-7 -0x1.0fd5a58b51b61p-5 0x1.6fe5160412591p-5 -0x1.ab3bfd018ba64p-5 0x1.e167bcb992e72p-5 "
        "-0x1.110beb85c69bap-4 0x1.3b1364f0f8d37p-4 -0x1.745d14504ebfcp-4 0x1.c71c71b458f0dp-4 -0x1.249249246f58fp-3 "
        "0x1.9999999999584p-3 -0x1.5555555555554p-2",
    )
    + f"  $V arc = {fused('q * s', 'p', 'q')};\n"
    + "  arc = tm_select_$V(middle, 0x1.921fb54442d18p-1 + (arc + 0x1.1a62633145c07p-55), arc);\n",
}
# Of magnitudes a and b, the quotient q of the lesser by the greater, and if b is less. Two zeros have the quotient 0,
# two infinities 1. In f64, a quotient from tan(pi/8) on is that of the angle less pi/4.
_QUOTIENT = {
    "f32": """\
  $M steep = a > b;
  $V least = tm_select_$V(steep, b, a), most = tm_select_$V(steep, a, b), q = least / most;
  q = tm_select_$V(most == 0, most, tm_select_$V(least == __builtin_inff(), tm_splat_$V(1.0f), q));
""",
    "f64": """\
  $M steep = a > b;
  $V least = tm_select_$V(steep, b, a), most = tm_select_$V(steep, a, b);
  $V unit = tm_select_$V(most > 0x1p1000, tm_splat_$V(0x1p-100), tm_splat_$V(1.0));
  $M both = least == __builtin_inf();
  least = tm_select_$V(both, tm_splat_$V(1.0), least * unit);
  most = tm_select_$V(both | (most == 0), tm_splat_$V(1.0), most * unit);
  $M middle = least > most * 0x1.a827999fcef32p-2;
  $V q = tm_select_$V(middle, least - most, least) / tm_select_$V(middle, least + most, most);
""",
}
_ATAN_END = """\
  arc = tm_select_$V(steep, $half_pi - arc - $half_rest, arc);
"""


def _atan(dtype: str) -> str:
    start = "  $V a = tm_abs_$V(x), b = tm_splat_$V(1);\n"
    return start + _QUOTIENT[dtype] + _ATAN_CORE[dtype] + _ATAN_END + "  return tm_copysign_$V(arc, x);"


def _atan2(dtype: str) -> str:
    """The angle of the point (y, x)."""
    start = "  $V a = tm_abs_$V(x), b = tm_abs_$V(y);\n"
    return (
        start
        + _QUOTIENT[dtype]
        + _ATAN_CORE[dtype]
        + _ATAN_END
        + """\
  arc = tm_select_$V(($I)tm_bits_$V(y) < 0, $pi - arc - $rest, arc);
  return tm_select_$V((x != x) | (y != y), x + y, tm_copysign_$V(arc, x));"""
    )


# asin(t) = t + t^3 p(t^2) for 0 <= t <= 1/2; from there on it is pi/2 less twice the arc of t = sqrt((1 - a) / 2).
_ASIN_POLYNOMIAL = {
    "f32": "0x1.34b1ccp-5f 0x1.d5dca8p-7f 0x1.04c602p-5f 0x1.6ca814p-5f 0x1.3338acp-4f 0x1.55554cp-3f",
    "f64": "0x1.0578f6b1fccap-5 -0x1.09f42274cd96bp-6 0x1.400935163345ap-6 0x1.abb2128b4c309p-8 0x1.8ec647ba720ccp-7 "
    "0x1.c6fd4543179f7p-7 0x1.1c6be7b85bb8ap-6 0x1.6e89f3dd83fb5p-6 0x1.f1c72c3cdf335p-6 0x1.6db6db426f174p-5 "
    "0x1.333333336e908p-4 0x1.555555555539p-3",
}


def _asin_core(dtype: str) -> str:
    return (
        """\
  $V a = tm_abs_$V(x);
  $M steep = a > 0.5$f;
  $V s = tm_select_$V(steep, (1 - a) * 0.5$f, a * a);
  $V t = tm_select_$V(steep, tm_sqrt_$V(s), a);
"""
        + horner("p", "s", _ASIN_POLYNOMIAL[dtype])
        + f"  $V y = {fused('t * s', 'p', 't')};\n"
    )


_ASIN = "  return tm_copysign_$V(tm_select_$V(steep, $half_pi - (y + y) - $half_rest, y), x);"
_ACOS = """\
  $V flat = $half_pi - tm_copysign_$V(y, x) - $half_rest;
  $V left = $pi - (y + y) - $rest;
  return tm_select_$V(steep, tm_select_$V(x < 0, left, y + y), flat);"""


def _filled(dtype: str, body: str) -> str:
    for name, value in zip(_NAMES, _CONSTANTS[dtype], strict=True):
        body = re.sub(rf"\${name}\b", value, body)
    return body


def _bodies(dtype: str) -> dict[str, str]:
    core = _asin_core(dtype)
    bodies = {"asin": core + _ASIN, "acos": core + _ACOS, "atan": _atan(dtype), "atan2": _atan2(dtype)}
    return {name: _filled(dtype, body) for name, body in bodies.items()}


BODIES = {dtype: _bodies(dtype) for dtype in ("f32", "f64")}
"""Bodies of functions of `x`, or of `x` and `y`, by element type."""
