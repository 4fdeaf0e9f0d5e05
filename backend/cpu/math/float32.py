"""Elementary functions in f32 by polynomials: branch-free, the same instructions in any number of lanes.

The reductions are the classical ones (J.-M. Muller, "Elementary Functions", 3rd edition, chapters 5 and 6):
subtract a power of two, in two parts of which the first times the multiplier is exact, then apply
a minimax polynomial. The polynomials were fitted to 40-digit values, with weights that bound the function's relative
error; `test_vector_math.py` holds the errors, in units of the last place, over the whole range. Fused operations are
written as such if the CPU has them, because the compiler may fuse nothing by itself. So all numbers of lanes give the
same bits.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.hyperbolics import sinh_and_cosh
from taskmap.backend.cpu.math.trigonometry import FUSES
from taskmap.backend.cpu.math.types import fused, horner

# x = n ln(2) + r. Added to 3 2^22, x / ln(2) is rounded to a whole number; the empty asm keeps -ffast-math from
# cancelling the sum.
_REDUCED = f"""\
  $V n = {fused("x", "0x1.715476p+0f", "0x1.8p23f")};
#ifdef __FAST_MATH__
  __asm__("" : "+m"(n));
#endif
  n -= 0x1.8p23f;
  $V r = {fused("n", "0x1.bd0106p-13f", fused("n", "-0x1.63p-1f", "x"))};
"""
# exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2
_EXP_CORE = (
    _REDUCED
    + horner("q", "r", "0x1.6a23cep-10f 0x1.123a2p-7f 0x1.5558f2p-5f 0x1.555492p-3f 0x1.fffffcp-2f")
    + f"  $V power = {fused('r * r', 'q', 'r')} + 1.0f;\n"
)
# e1 = exp(r) - 1, with one term more: relative to exp(r) - 1, which is small where r is.
_EXPM1_CORE = (
    _REDUCED
    + horner("q", "r", "0x1.a032c2p-13f 0x1.6d723ep-10f 0x1.11118ap-7f 0x1.5554bp-5f 0x1.555554p-3f 0.5f")
    + f"  $V e1 = {fused('r * r', 'q', 'r')};\n"
)
# The result is 0 below -104. The least x is far below: scaling by a power of two just below the smallest number, as a
# masked score of attention would, takes microcode, some 150 cycles for a vector.
_EXP = (
    "  x = tm_atmost_$V(tm_atleast_$V(x, tm_splat_$V(-416.0f)), tm_splat_$V(89.0f));\n"
    + _EXP_CORE
    + "  return tm_scale_$V(power, n);"
)
_EXP2 = (
    "  x = tm_atmost_$V(tm_atleast_$V(x, tm_splat_$V(-151.0f)), tm_splat_$V(129.0f));\n"
    "  $V n = tm_round_$V(x);\n"
    "  $V r = x - n;\n"
    + horner("q", "r", "0x1.41fb66p-13f 0x1.5f3ed8p-10f 0x1.3b2d4ep-7f 0x1.c6aee8p-5f 0x1.ebfbdcp-3f 0x1.62e43p-1f")
    + f"  return tm_scale_$V({fused('q', 'r', '1.0f')}, n);"
)
# 2^n (exp(r) - 1) + (2^n - 1), with half of 2^n, which does not overflow where the result does not.
_EXPM1 = (
    "  $V small = x;\n"
    "  x = tm_atmost_$V(tm_atleast_$V(x, tm_splat_$V(-18.0f)), tm_splat_$V(89.0f));\n"
    + _EXPM1_CORE
    + f"""\
  $V t = tm_pow2_$V(n - 1.0f);
  $V y = {fused("t", "e1", "t - 0.5f")};
  return tm_select_$V(tm_abs_$V(small) < 0x1p-24f, small, y + y);"""
)
# Quotients a / b, of an estimate of 1 / b and of what is then left of a, without the rounding error of b: these are
# a - y - y e of y = a / (1 + e), and a - 2 y - y a of y = a / (2 + a). The first difference is exact for a <= 2; beyond
# it, the rounding error of y a would be larger than what it corrects where products are rounded.
# tanh(x) = a / (2 + a) with a = exp(2 |x|) - 1, which is large enough from 9.5 on.
_TANH = (
    "  $V signed_x = x;\n  x = tm_atmost_$V(tm_abs_$V(x), tm_splat_$V(9.5f));\n  x = x + x;\n"
    + _EXPM1_CORE
    + f"""\
  $V t = tm_pow2_$V(n);
  $V a = {fused("t", "e1", "t - 1.0f")};
#if {FUSES}
  $V guess = tm_estimate_$V(a + 2.0f);
  $V y = a * guess;
  $V rest = {fused("-y", "a", fused("-2.0f", "y", "a"))};
  y = {fused("rest", "guess", "y")};
#else
  $V y = a / (a + 2.0f);
  $V rest = a - y - y - y * a;
  y += tm_select_$V(a < 2.0f, rest, tm_splat_$V(0.0f)) / (a + 2.0f);
#endif
  return tm_copysign_$V(y, signed_x);"""
)
# e / (1 + e) for x < 0 and 1 / (1 + e) for x >= 0, where e = exp(-|x|) <= 1.
_SIGMOID = (
    "  $M negative = x < 0;\n  x = tm_atleast_$V(-tm_abs_$V(x), tm_splat_$V(-104.0f));\n"
    + _EXP_CORE
    + f"""\
  $V e = tm_scale_$V(power, n);
  $V a = tm_select_$V(negative, e, tm_splat_$V(1.0f));
  $V guess = tm_estimate_$V(e + 1.0f);
  $V y = a * guess;
  $V rest = {fused("-y", "e", "a - y")};
  return {fused("rest", "guess", "y")};"""
)

# log(1 + f) - f = f^2 (f p(f) - 1/2) for 2/3 <= 1 + f < 4/3
_LOG_CORE = (
    horner(
        "p",
        "f",
        "-0x1.08174p-3f 0x1.1e7866p-3f -0x1.f309ecp-4f 0x1.1ed3d2p-3f -0x1.559e08p-3f 0x1.99d056p-3f -0x1.fffefp-3f "
        "0x1.555506p-2f",
    )
    + f"  $V w = {fused('p', 'f', '-0.5f')};\n"
)
_LOG_START = "  $V n, f = tm_log_split_$V(x, &n);\n"
# ln(2) in two parts: the first has 9 bits, so its product with n is exact.
_LOG_SUM = fused("n", "0x1.63p-1f", fused("f * f", "w", fused("n", "-0x1.bd0106p-13f", "f")))
_LOG = _LOG_START + _LOG_CORE + f"  return tm_log_edges_$V(x, {_LOG_SUM});"
# log2(1 + f) = f + f (c + log2(e) f (f p(f) - 1/2)) with c = log2(e) - 1
_LOG2 = (
    _LOG_START
    + _LOG_CORE
    + f"  $V k = {fused('f * w', '0x1.715476p+0f', '0x1.c551d9p-2f')};\n"
    + f"  return tm_log_edges_$V(x, {fused('f', 'k', 'f + n')});"
)
# The same of 2 log10: c = 2 log10(e) - 1. log10(2) is in two parts, like ln(2).
_LOG10 = (
    _LOG_START
    + _LOG_CORE
    + f"  $V k = {fused('f * w', '0x1.bcb7b2p-1f', '-0x1.0d213cp-3f')};\n"
    + f"  $V y = {fused('n', '0x1.3509f8p-17f', fused('f', 'k', 'f'))};\n"
    + f"  return tm_log_edges_$V(x, {fused('y', '0.5f', 'n * 0x1.344p-2f')});"
)
# The rounding error of 1 + x is added to f, at the scale of f.
_LOG1P = (
    "  $V u = x + 1.0f;\n"
    "  $V lost = tm_select_$V(x > 1.0f, 1.0f - (u - x), x - (u - 1.0f));\n"
    "  $V n, f = tm_log_split_$V(u, &n);\n"
    f"  f = {fused('lost', 'tm_pow2_$V(-tm_atmost_$V(n, tm_splat_$V(64.0f)))', 'f')};\n"
    + _LOG_CORE
    + f"  return tm_select_$V(x == 0, x, tm_log_edges_$V(u, {_LOG_SUM}));"
)

# x = 2^n (1 + f); numbers below the normal ones are scaled first. Results for 0, inf, NaN and x < 0 do not matter.
# Of 1 <= m < 2, those from 4/3 on are halved: there 3/4 m has the exponent 0, below it -1.
_LOG_SPLIT = """\
TM_INLINE $V tm_log_split_$V($V x, $V *n) {
#if $wide
  $V m = __builtin_ia32_getmantps512_mask(x, 0, x, -1, 4);
  $V up = __builtin_ia32_getexpps512_mask(m * 0.75f, x, -1, 4) + 1.0f;
  *n = __builtin_ia32_getexpps512_mask(x, x, -1, 4) + up;
  return __builtin_ia32_scalefps512_mask(m, -up, x, -1, 4) - 1.0f;
#else
  $M tiny = x < 0x1p-126f;
  $U u = tm_bits_$V(tm_select_$V(tiny, x * 0x1p23f, x)) - 0x3f2aaaab;
  *n = tm_cast_${I}_to_$V(($I)u >> 23) - tm_select_$V(tiny, tm_splat_$V(23.0f), tm_splat_$V(0.0f));
  return tm_from_bits_$V((u & 0x7fffff) + 0x3f2aaaab) - 1.0f;
#endif
}"""
# The logarithms of 0 and inf, and NaN where x < 0 or x is one; y elsewhere. The table of the one instruction that does
# this has four bits for each kind of x: a quiet and a signalling NaN, 0, 1, -inf, inf, < 0, > 0.
_LOG_EDGES = """\
TM_INLINE $V tm_log_edges_$V($V x, $V y) {
#if $wide
  return __builtin_ia32_fixupimmps512_mask(y, x, tm_splat_$I(0x03530422), 0, -1, 4);
#else
  $V edge = tm_select_$V(x < 0, tm_splat_$V(__builtin_nanf("")), x);
  edge = tm_select_$V(x == 0, tm_splat_$V(-__builtin_inff()), edge);
  return tm_select_$V((x > 0) & (x < __builtin_inff()), y, edge);
#endif
}"""

# erf(x) = x + x p(x^2) for |x| <= 1, and 1 - exp(-x g(x)) for 1 < x, where 1 - erf(4) is below a quarter of an ulp.
_ERF = (
    """\
  $V signed_x = x;
  $V a = tm_atmost_$V(tm_abs_$V(x), tm_splat_$V(4.0f));
  $V s = a * a;
"""
    + horner(
        "p",
        "s",
        "0x1.496a86p-14f -0x1.a3f722p-11f 0x1.5405b8p-8f -0x1.b7f90ep-6f 0x1.ce2cf8p-4f -0x1.81273ep-2f 0x1.06eba8p-3f",
    )
    + horner(
        "g",
        "a",
        "-0x1.ca55b8p-17f 0x1.6c5628p-12f -0x1.eac51ep-9f 0x1.88e7eap-6f -0x1.b434f4p-4f -0x1.451dap-1f "
        "-0x1.20f1bcp+0f",
    )
    + "  x = g * a;\n"
    + _EXP_CORE
    + f"""\
  $V tail = {fused("-power", "tm_pow2_$V(n)", "1.0f")};
  return tm_copysign_$V(tm_select_$V(a < 1.0f, {fused("a", "p", "a")}, tail), signed_x);"""
)

# Bodies of functions of `x`, and full definitions of their helpers.
BODIES = {
    "exp": _EXP,
    "exp2": _EXP2,
    "expm1": _EXPM1,
    "tanh": _TANH,
    "sigmoid": _SIGMOID,
    "log": _LOG,
    "log2": _LOG2,
    "log10": _LOG10,
    "log1p": _LOG1P,
    "erf": _ERF,
    **sinh_and_cosh("91.0f", _EXP_CORE, "power", "0x1.756c2p-19f 0x1.a022bcp-13f 0x1.1110ep-7f 0x1.555556p-3f"),
}
SHARED = {"log_split": _LOG_SPLIT, "log_edges": _LOG_EDGES}
