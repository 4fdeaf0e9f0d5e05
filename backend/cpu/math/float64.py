"""Elementary functions in f64, as in f32 (see float32) with longer polynomials. The rest of f64 calls the C library."""

from __future__ import annotations

from taskmap.backend.cpu.math.hyperbolics import sinh_and_cosh
from taskmap.backend.cpu.math.types import fused, horner

# exp(r) - 1 - r = r^2 q(r) for |r| <= ln(2) / 2; ln(2) in two parts, the first of 32 bits.
_COEFFICIENTS = (
    "0x1.b07d40309f82dp-26 0x1.28eb864505605p-22 0x1.71ddc97e4ec40p-19 0x1.a01952cee6398p-16 0x1.a01a01838db0cp-13 "
    "0x1.6c16c1a021876p-10 0x1.1111111124515p-7 0x1.5555555547f2ap-5 0x1.55555555554d4p-3 0x1.0000000000025p-1"
)
_REDUCED = (
    "  $V n = tm_round_$V(x * 0x1.71547652b82fep+0);\n"
    f"  $V r = {fused('n', '-0x1.473de6af278edp-34', fused('n', '-0x1.62e42fefp-1', 'x'))};\n"
)
_EXP_CORE = _REDUCED + horner("q", "r", _COEFFICIENTS) + f"  $V whole = {fused('r * r', 'q', 'r')} + 1.0;\n"
_EXP = (
    "  x = tm_atmost_$V(tm_atleast_$V(x, tm_splat_$V(-746.0)), tm_splat_$V(710.0));\n"
    + _EXP_CORE
    + "  return tm_scale_$V(whole, n);"
)
_EXP2 = (
    "  x = tm_atmost_$V(tm_atleast_$V(x, tm_splat_$V(-1076.0)), tm_splat_$V(1025.0));\n"
    "  $V n = tm_round_$V(x), r = (x - n) * 0x1.62e42fefa39efp-1;\n"
    + horner("q", "r", _COEFFICIENTS)
    + f"  return tm_scale_$V({fused('r * r', 'q', 'r')} + 1.0, n);"
)
# exp(r) - 1 = r + r^2 / 2 + r^3 q(r); then 2^n of that and 2^n - 1, both halved, so that nothing overflows early.
_EXPM1_CORE = (
    _REDUCED
    + horner(
        "q",
        "r",
        "0x1.2559bed49dec6p-29 0x1.af6856e6c67aap-26 0x1.27e1cd3036bbfp-22 0x1.71ddf3d66fdbap-19 0x1.a01a029e8c7b7p-16 "
        "0x1.a01a01b118273p-13 0x1.6c16c16c01cabp-10 0x1.111111110f543p-7 0x1.5555555555537p-5 0x1.5555555555559p-3",
    )
    + f"  $V e1 = {fused('r * r', fused('r', 'q', '0.5'), 'r')};\n"
)
_EXPM1 = (
    "  $V small = x;\n"
    "  x = tm_atmost_$V(tm_atleast_$V(x, tm_splat_$V(-40.0)), tm_splat_$V(710.0));\n"
    + _EXPM1_CORE
    + f"""\
  $V t = tm_pow2_$V(n - 1.0);
  $V y = {fused("t", "e1", "t - 0.5")};
  return tm_select_$V(tm_abs_$V(small) < 0x1p-54, small, y + y);"""
)
_SIGMOID = """\
  $V e = tm_exp_$V(-tm_abs_$V(x));
  return tm_select_$V(x < 0, e, tm_splat_$V(1)) / (e + 1);"""
# tanh(x) = x + x^3 p(x^2) for |x| < 0.6, and 1 - 2 / (exp(2x) + 1) from there on
_TANH = (
    """\
  $V signed_x = x;
  $V a = tm_atmost_$V(tm_abs_$V(x), tm_splat_$V(20.0));
  $V s = a * a;
  x = a + a;
"""
    + horner(
        "p",
        "s",
        "0x1.b46875c90b29p-18 -0x1.058a0ac646e41p-15 0x1.83ed56d10f57bp-14 -0x1.f219b151bda75p-13 "
        "0x1.3521c6b01071bp-11 -0x1.7d9eae046537p-10 0x1.d6d3892820bfp-9 -0x1.226e33f172f65p-7 0x1.664f48798311cp-6 "
        "-0x1.ba1ba1b9f899p-5 0x1.1111111110fp-3 -0x1.5555555555554p-2",
    )
    + _EXP_CORE
    + f"""\
  $V e = whole * tm_pow2_$V(n);
  return tm_copysign_$V(tm_select_$V(a < 0.6, {fused("a * s", "p", "a")}, 1.0 - 2.0 / (e + 1.0)), signed_x);"""
)

_SINH = (
    "0x1.b5c91a59d2f1cp-41 0x1.6116f3bc59ca5p-33 0x1.ae646ff60810cp-26 0x1.71de3a3b06518p-19 0x1.a01a01a03726bp-13 "
    "0x1.111111111101ep-7 0x1.5555555555556p-3"
)

# erf(x) = x + x p(x^2) for |x| < 1; from there on 1 - exp(-x^2) g((x - 2) / (x + 2)), where 1 - erf(6) rounds to 0.
_ERF = (
    """\
  $V signed_x = x;
  $V a = tm_atmost_$V(tm_abs_$V(x), tm_splat_$V(6.0));
  $V s = a * a, u = (a - 2) / (a + 2);
"""
    + horner(
        "p",
        "s",
        "-0x1.abae2da224417p-31 0x1.d71b0614a1d5p-27 -0x1.5c0725abb1bp-23 0x1.b97fd3a6b8a81p-20 -0x1.f4ca4d6a64dc6p-17 "
        "0x1.f9a2baa8b5134p-14 -0x1.c02db03dd46d4p-11 0x1.565bccf92b212p-8 -0x1.b82ce311fa939p-6 0x1.ce2f21a040d16p-4 "
        "-0x1.812746b0379bdp-2 0x1.06eba8214db68p-3",
    )
    + horner(
        "g",
        "u",
        "-0x1.9012fe135218ep-17 0x1.12c0d40256e78p-15 0x1.6d146ab600febp-13 0x1.6912d14c6a964p-15 "
        "-0x1.0170a4a13306cp-10 -0x1.bc248ee083e46p-11 0x1.ca95f95dce782p-8 0x1.e947167336b24p-9 "
        "-0x1.437f0b6a33dabp-4 0x1.eeea7dc89b02ep-3 -0x1.b57034efd3e5bp-2 0x1.058671b52c78ep-2",
    )
    + "  x = -s;\n"
    + _EXP_CORE
    + f"""\
  $V tail = {fused("-g", "whole * tm_pow2_$V(n)", "1.0")};
  return tm_copysign_$V(tm_select_$V(a < 1.0, {fused("a", "p", "a")}, tail), signed_x);"""
)

# log(1 + f) = f - (h - s (h + z p(z))) for s = f / (2 + f), z = s^2, h = f^2 / 2, and 0.7 <= 1 + f <= 1.42
_LOG_CORE = (
    "  $V s = f / (f + 2), z = s * s, h = f * f * 0.5;\n"
    + horner(
        "p",
        "z",
        "0x1.0f96649a96495p-3 0x1.0f58ca72dd0f1p-3 0x1.3b20c0b7bad01p-3 0x1.745cde76be0d4p-3 0x1.c71c7254e324fp-3 "
        "0x1.2492492432e04p-2 0x1.9999999999d48p-2 0x1.5555555555555p-1",
    )
    + f"  $V w = s * {fused('z', 'p', 'h')};\n"
)
_LOG_START = "  $V n, f = tm_log_split_$V(x, &n);\n"
# ln(2) in two parts, the first of 40 bits, so its product with n is exact.
_LOG_SUM = fused("n", "0x1.62e42fefa4p-1", f"(f - (h - {fused('n', '-0x1.8432a1b0e2634p-43', 'w')}))")
_LOG = _LOG_START + _LOG_CORE + f"  return tm_log_edges_$V(x, {_LOG_SUM});"
_LOG2 = (
    _LOG_START
    + _LOG_CORE
    + f"  return tm_log_edges_$V(x, {fused('f - (h - w)', '0x1.71547652b82fep+0', 'n')});"
)  # fmt: skip
_LOG10 = (
    _LOG_START
    + _LOG_CORE
    + f"  $V y = {fused('n', '-0x1.80433b83b532ap-44', '(f - (h - w)) * 0x1.bcb7b1526e50ep-2')};\n"
    + f"  return tm_log_edges_$V(x, {fused('n', '0x1.34413509f8p-2', 'y')});"
)
# The rounding error of 1 + x is added to f, at the scale of f.
_LOG1P = (
    "  $V u = x + 1.0;\n"
    "  $V lost = tm_select_$V(x > 1.0, 1.0 - (u - x), x - (u - 1.0));\n"
    "  $V n, f = tm_log_split_$V(u, &n);\n"
    f"  f = {fused('lost', 'tm_pow2_$V(-tm_atmost_$V(n, tm_splat_$V(64.0)))', 'f')};\n"
    + _LOG_CORE
    + f"  return tm_select_$V(x == 0, x, tm_log_edges_$V(u, {_LOG_SUM}));"
)

# x = 2^n (1 + f) with 1 + f from sqrt(1/2) on; numbers below the normal ones are scaled first. Results for 0, inf, NaN
# and x < 0 do not matter.
LOG_SPLIT = """\
TM_INLINE $V tm_log_split_$V($V x, $V *n) {
  $M tiny = x < 0x1p-1022;
  $U u = tm_bits_$V(tm_select_$V(tiny, x * 0x1p54, x)) + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
  $V bias = tm_select_$V(tiny, tm_splat_$V(0x1p52 + 1077), tm_splat_$V(0x1p52 + 1023));
  *n = tm_from_bits_$V((u >> 52) | 0x4330000000000000ull) - bias;
  return tm_from_bits_$V((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
}"""

BODIES = {
    "exp": _EXP,
    "exp2": _EXP2,
    "expm1": _EXPM1,
    "sigmoid": _SIGMOID,
    "tanh": _TANH,
    **sinh_and_cosh("712.0", _EXP_CORE, "whole", _SINH),
    "erf": _ERF,
    "log": _LOG,
    "log2": _LOG2,
    "log10": _LOG10,
    "log1p": _LOG1P,
}
"""Bodies of functions of `x`."""
