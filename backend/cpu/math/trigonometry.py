"""Sine, cosine and tangent in f32 and f64.

The reduction (Cody and Waite, "Software Manual for the Elementary Functions", 1980) subtracts a multiple n of pi/2 in
parts. With fused operations the parts have a whole significand each: x - n times the first part is exact, because it
is a multiple of the last place of that part and less than 1. Without them, and for larger x, f32 is reduced in f64; the
rest, and f64 without them, is left to the C library.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.types import fused, horner

FUSES = "defined(__FMA__) || defined(__FP_FAST_FMA$F)"
"""The condition of the preprocessor that products are fused; $F is "F" for f32."""

# For |x| <= 2^13: r is rounded once.
_REDUCE = f"""\
TM_INLINE $V tm_trig_reduce_$V($V x, $I *quadrant) {{
  $V n = tm_round_$V(x * 0x1.45f306p-1f);
  *quadrant = tm_cast_${{V}}_to_$I(n);
  $V r = {fused("n", "0x1.777a5cp-25f", fused("n", "-0x1.921fb6p+0f", "x"))};
  return {fused("n", "0x1.ee59dap-50f", "r")};
}}"""


def _reduce_exactly(inverse: str, first: str, second: str, third: str, shift: str) -> str:
    """r + lost, where lost is what r was rounded by. n + `shift` has n in its last bits."""
    return f"""\
TM_INLINE $V tm_trig_reduce_exactly_$V($V x, $V *lost, $I *quadrant) {{
  $V n = tm_round_$V(x * {inverse});
  *quadrant = ($I)tm_bits_$V(n + {shift});
  $V near = {fused("n", first, "x")};
  $V part = n * {second};
  $V rest = {fused("n", second, "-part")};
  $V r = near - part;
  *lost = (near - r - part) + {fused("n", third, "-rest")};
  return r;
}}"""


REDUCTIONS = {
    "f32": {
        "trig_reduce": _REDUCE,
        "trig_reduce_exactly": _reduce_exactly(
            "0x1.45f306p-1f", "-0x1.921fb6p+0f", "-0x1.777a5cp-25f", "0x1.ee59dap-50f", "0x1.8p23f"
        ),
    },
    "f64": {
        "trig_reduce_exactly": _reduce_exactly(
            *("0x1.45f306dc9c883p-1", "-0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "0x1.f1976b7ed8fbcp-110"),
            "0x1.8p52",
        )
    },
}
"""Definitions of steps by element type and name: for |x| <= 2^13 (f32) or 2^20 (f64)."""
STEPS = frozenset(name for names in REDUCTIONS.values() for name in names)

# Of f32 in f64, for |x| <= 2^20: the first part of pi/2, 33 bits of it, times n is exact.
_REDUCE_IN_F64 = f"""\
TM_INLINE $V tm_trig_reduce_wide_$V($V x, $V *lost, $I *quadrant) {{
  $W d = tm_cast_${{V}}_to_$W(x);
  $W n = tm_round_$W(d * 0x1.45f306dc9c883p-1);
  *quadrant = tm_cast_${{W}}_to_$I(n);
  d = {fused("n", "-0x1.921fb544p+0", "d", "$W")};
  d = {fused("n", "-0x1.0b4611a626331p-34", "d", "$W")};
  $V r = tm_cast_${{W}}_to_$V(d);
  *lost = tm_cast_${{W}}_to_$V(d - tm_cast_${{V}}_to_$W(r));
  return r;
}}"""
_REDUCE_HALVES = """\
TM_INLINE $V tm_trig_reduce_wide_$V($V x, $V *lost, $I *quadrant) {
  $HI lo, hi;
  $H a, b, r = tm_trig_reduce_wide_$H(tm_lo_$V(x), &a, &lo), s = tm_trig_reduce_wide_$H(tm_hi_$V(x), &b, &hi);
  *quadrant = tm_join_$I(lo, hi);
  *lost = tm_join_$V(a, b);
  return tm_join_$V(r, s);
}"""


def reduction_in_f64(halves: bool) -> str:
    """The definition of `tm_trig_reduce_wide_V`, of halves if so many f64 are no register; $W is their type, $HI half
    the quadrants."""
    return _REDUCE_HALVES if halves else _REDUCE_IN_F64


# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 for |r| <= pi/4
_SIN_COS = {
    "f32": horner("sine", "s", "-0x1.99432ep-13f 0x1.110738p-7f -0x1.555546p-3f")
    + horner("cosine", "s", "0x1.99eaf8p-16f -0x1.6c0c32p-10f 0x1.55554ap-5f")
    + f"  sine = {fused('r * s', 'sine', 'r')};\n"
    + f"  cosine = {fused('s * s', 'cosine', fused('s', '-0.5f', '1.0f'))};\n",
    "f64": horner(
        "sine",
        "s",
        "-0x1.9ffd987de42cep-41 0x1.6109bdbfa2b93p-33 -0x1.ae642c521b60fp-26 0x1.71de3a33a5b9p-19 "
        "-0x1.a01a019ffe524p-13 0x1.1111111111069p-7 -0x1.5555555555555p-3",
    )
    + horner(
        "cosine",
        "s",
        "0x1.9c7bf6a670d03p-45 -0x1.9371cf4d6f20bp-37 0x1.1eed6d77609fcp-29 -0x1.27e4fb588d4bp-22 "
        "0x1.a01a019ffb916p-16 -0x1.6c16c16c16b2bp-10 0x1.5555555555555p-5",
    )
    + f"  sine = {fused('r * s', 'sine', 'lost')} + r;\n"
    + "  $V half = s * 0.5, whole = 1 - half;\n"
    + f"  cosine = whole + ((1 - whole - half) + {fused('s * s', 'cosine', '-r * lost')});\n",
}
_BY_QUADRANT = """\
  $V y = tm_select_$V((quadrant & 1) != 0, cosine, sine);
  y = tm_from_bits_$V(tm_bits_$V(y) ^ (($U)(quadrant & 2) << $top));
"""
_QUICK = "  $I quadrant;\n  $V r = tm_trig_reduce_$V(x, &quadrant), s = r * r;\n"
_EXACT = "  $I quadrant;\n  $V lost, r = tm_trig_reduce_exactly_$V(x, &lost, &quadrant), s = r * r;\n"
_WIDE = _EXACT.replace("exactly", "wide")
_TINY = "  y = tm_select_$V(tm_abs_$V(x) < $tiny, x, y);\n"  # keeps the sign of zero

# tan(r) = r + r^3 p(r^2) for |r| <= pi/4, and -1 / tan(r) in odd quadrants, where a step of Newton's method corrects
# the quotient and adds what t was rounded by.
_TAN = horner(
    "p",
    "s",
    "0x1.17e71p-9f -0x1.ab1a7p-11f 0x1.549b12p-8f 0x1.0dc72cp-7f 0x1.689eb6p-6f 0x1.b9f78ap-5f 0x1.111198p-3f "
    "0x1.555554p-2f",
) + (
    f"  p = {fused('r * s', 'p', fused('lost', 's', 'lost'))};\n"
    "  $V t = r + p, w = -1 / t;\n"
    f"  w = {fused('w', fused('r - t + p', 'w', fused('t', 'w', '1.0f')), 'w')};\n"
    "  $V y = tm_select_$V((quadrant & 1) != 0, w, t);\n"
)
_TAN_BY_QUOTIENT = """\
  $M odd = (quadrant & 1) != 0;
  $V y = tm_select_$V(odd, -cosine, sine) / tm_select_$V(odd, sine, cosine);
"""


def _body(name: str, dtype: str, start: str, bound: str, far: str) -> str:
    """The function `name`, which is `far` beyond `bound`."""
    if name == "tan":
        middle = _TAN if dtype == "f32" else _SIN_COS[dtype] + _TAN_BY_QUOTIENT
    else:
        middle = "  quadrant = quadrant + 1;\n" * (name == "cos") + _SIN_COS[dtype] + _BY_QUADRANT
    return (
        start
        + middle
        + _TINY * (name != "cos")
        + f"  $M large = tm_abs_$V(x) > {bound};\n"
        + f"  return __builtin_expect(tm_any_$M(large), 0) ? tm_select_$V(large, tm_{far}_$V(x), y) : y;"
    )


def _if_fused(body: str, other: str) -> str:
    return f"#if {FUSES}\n{body}\n#else\n  return tm_{other}_$V(x);\n#endif"


def _near(name: str, dtype: str) -> str:
    if dtype == "f64":
        far = f"far_{name}"
        return _if_fused(_body(name, dtype, _EXACT, "0x1p20", far), far)
    far = f"wide_{name}"
    return _if_fused(_body(name, dtype, _EXACT if name == "tan" else _QUICK, "0x1p13f", far), far)


_NAMES = ("sin", "cos", "tan")
BODIES = {dtype: {name: _near(name, dtype) for name in _NAMES} for dtype in ("f32", "f64")}
"""Bodies of functions of `x` by element type. $tiny bounds the x that are their own sines; $top is an element's bits
less two."""
WIDE = {f"wide_{name}": _body(name, "f32", _WIDE, "0x1p20f", f"far_{name}") for name in _NAMES}
"""Bodies of the same functions in f32, reduced in f64."""
CONSTANTS = {"f32": {"tiny": "0x1p-12f", "top": "30", "F": "F"}, "f64": {"tiny": "0x1p-27", "top": "62", "F": ""}}
"""The constants that the bodies leave open."""
