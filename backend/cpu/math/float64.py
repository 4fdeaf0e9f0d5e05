"""exp and sigmoid in f64, as in f32 with a longer polynomial. The other functions of f64 call the C library."""

from __future__ import annotations

from taskmap.backend.cpu.math.types import fused, horner

# exp(r) - 1 - r = r^2 q(r) for |r| <= ln(2) / 2; ln(2) in two parts, the first of 32 bits.
_COEFFICIENTS = (
    "0x1.b07d40309f82dp-26 0x1.28eb864505605p-22 0x1.71ddc97e4ec40p-19 0x1.a01952cee6398p-16 0x1.a01a01838db0cp-13 "
    "0x1.6c16c1a021876p-10 0x1.1111111124515p-7 0x1.5555555547f2ap-5 0x1.55555555554d4p-3 0x1.0000000000025p-1"
)
_EXP = (
    "  x = tm_atmost_$V(tm_atleast_$V(x, tm_splat_$V(-746.0)), tm_splat_$V(710.0));\n"
    "  $V n = tm_round_$V(x * 0x1.71547652b82fep+0);\n"
    f"  $V r = {fused('n', '-0x1.473de6af278edp-34', fused('n', '-0x1.62e42fefp-1', 'x'))};\n"
    + horner("q", "r", _COEFFICIENTS)
    + f"  return tm_scale_$V({fused('r * r', 'q', 'r')} + 1.0, n);"
)
_SIGMOID = """\
  $V e = tm_exp_$V(-tm_abs_$V(x));
  return tm_select_$V(x < 0, e, tm_splat_$V(1)) / (e + 1);"""

BODIES = {"exp": _EXP, "sigmoid": _SIGMOID}
