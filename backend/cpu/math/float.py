"""Functions of f32 and f64 that need neither polynomials nor the C library: signs, roots, comparisons, divisions."""

# Bodies of functions of `x`, or of `x` and `y`; $f is the suffix of a constant or a built-in, $sign the sign bit, $inf
# the representation of infinity.
UNARY = {
    "abs": "  return tm_from_bits_$V(tm_bits_$V(x) & ~$sign);",
    "neg": "  return -x;",
    "square": "  return x * x;",
    "reciprocal": "  return 1 / x;",
    "rsqrt": "  return 1 / tm_sqrt_$V(x);",
    # torch gives 0 for a NaN.
    "sign": "  return tm_select_$V(x > 0, tm_splat_$V(1), tm_select_$V(x < 0, tm_splat_$V(-1), tm_splat_$V(0)));",
}
BINARY = {
    "add": "  return x + y;",
    "sub": "  return x - y;",
    "mul": "  return x * y;",
    "div": "  return x / y;",
    "trunc_div": "  return tm_trunc_$V(x / y);",
    "copysign": "  return tm_from_bits_$V((tm_bits_$V(x) & ~$sign) | (tm_bits_$V(y) & $sign));",
    "fmax": "  return tm_select_$V(y != y, x, tm_atleast_$V(y, x));",
    "fmin": "  return tm_select_$V(y != y, x, tm_atmost_$V(y, x));",
    # The remainder has the sign of the divisor, as in Python.
    "remainder": """\
  $V r = tm_fmod_$V(x, y);
  return tm_select_$V((r != 0) & ((y < 0) != (r < 0)), r + y, r);""",
    # The quotient of what the remainder leaves is integral but for its rounding.
    "floor_div": """\
  $V q = x / y, r = tm_fmod_$V(x, y);
  $V d = (x - r) / y;
  d = tm_select_$V((r != 0) & ((y < 0) != (r < 0)), d - 1, d);
  $V whole = tm_floor_$V(d);
  whole = tm_select_$V(d - whole > 0.5$f, whole + 1, whole);
  return tm_select_$V(y == 0, q, tm_copysign_$V(whole, tm_select_$V(d == 0, q, whole)));""",
}
PREDICATES = {
    "isnan": "  return x != x;",
    "isinf": "  return tm_abs_$V(x) == __builtin_inf$f();",
    "isfinite": "  return tm_abs_$V(x) < __builtin_inf$f();",
    "signbit": "  return ($I)tm_bits_$V(x) < 0;",
}
