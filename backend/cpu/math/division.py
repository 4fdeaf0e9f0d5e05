"""fmod of f32 and f64: exact, from a rounded quotient."""

from __future__ import annotations

from taskmap.backend.cpu.math.trigonometry import FUSES

# The quotient, cut to a whole number q, is right or one too large, as rounding may lift it to the next whole number. So
# a - q b, plus b where it is negative, is exact: it has no more digits than a and b. The rest is left to `tm_far_fmod`.
FMOD = f"""\
#if {FUSES}
  $V a = tm_abs_$V(x), b = tm_abs_$V(y), q = tm_trunc_$V(a / b), r = tm_fma_$V(-q, b, a);
  r = tm_select_$V(r < 0, r + b, r);
#ifdef __FAST_MATH__
  r = tm_select_$V(r >= b, r - b, r);
#endif
  r = tm_copysign_$V(r, x);
  $M large = tm_not_$M((q < $most) & (b < __builtin_inf$f()));
  return __builtin_expect(tm_any_$M(large), 0) ? tm_select_$V(large, tm_far_fmod_$V(x, y), r) : r;
#else
  return tm_far_fmod_$V(x, y);
#endif"""
FAR_F32 = "  return tm_cast_${W}_to_$V(tm_fmod_$W(tm_cast_${V}_to_$W(x), tm_cast_${V}_to_$W(y)));"
"""Of f32: exact in f64, whose quotients may be 2^29 times as large."""
CONSTANTS = {"f32": {"most": "0x1p22f", "F": "F"}, "f64": {"most": "0x1p51", "F": ""}}
"""The constants that the body leaves open."""
