"""Functions computed lane by lane: those of the C library, and two that it lacks.

The built-ins need no header; they become calls into libm. erfinv and digamma are scalar f64 code, rounded for f32.
"""

# Expressions of one lane; $f is "f" for f32.
UNARY = {
    name: f"__builtin_{name}$f(x)"
    for name in (
        "asinh",
        "acosh",
        "atanh",
        "erfc",
    )
} | {
    **{f"far_{name}": f"__builtin_{name}$f(x)" for name in ("sin", "cos", "tan")},
    "lgamma": "tm_lgamma_lane_${V}(x)",
    "digamma": "tm_digamma_lane_f64x1(x)",
    "erfinv": "tm_erfinv_lane_f64x1(x)",
}
BINARY = {name: f"__builtin_{name}$f(x, y)" for name in ("pow", "hypot")}
BINARY["far_fmod"] = "__builtin_fmod$f(x, y)"

# lgamma itself writes a global variable of the C library.
_LGAMMA = """\
TM_INLINE $V tm_lgamma_lane_$V($V x) {
  extern $V lgamma${f}_r($V, int *);
  int sign;
  return lgamma${f}_r(x, &sign);
}"""

# The asymptotic series (Abramowitz and Stegun 6.3.18) from 10 on; below, the recurrence 6.3.5; left of 0, the
# reflection 6.3.7. At 0 the sign of the pole follows the sign of the zero, and the other poles give NaN, as in torch.
_DIGAMMA = """\
static double tm_digamma_lane_f64x1(double x) {
  if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
  double reflected = 0;
  if (x < 0) {
    double whole = __builtin_rint(x);
    if (whole == x) return __builtin_nan("");
    reflected = -0x1.921fb54442d18p+1 / __builtin_tan(0x1.921fb54442d18p+1 * (x - whole));
    x = 1 - x;
  }
  double y = 0;
  for (; x < 10; x += 1) y -= 1 / x;
  double s = 1 / (x * x);
  double series = s * (1. / 12 - s * (1. / 120 - s * (1. / 252 - s * (1. / 240 - s * (1. / 132 - s * (691. / 32760
                  - s * (1. / 12)))))));
  if (x < 1e17) y += __builtin_log(x) - 0.5 / x - series;
  else y += __builtin_log(x);
  return y + reflected;
}"""

# Two steps of Halley's method on erf, or near 1 on erfc, from S. Winitzki's approximation ("A handy approximation for
# the error function and its inverse", 2008), good to 2e-3, or near 0 from the slope of erfinv there.
_ERFINV = """\
static double tm_erfinv_lane_f64x1(double x) {
  double a = __builtin_fabs(x), y;
  if (!(a < 1)) return a == 1 ? x * __builtin_inf() : __builtin_nan("");
  if (a < 0.1) {
    y = a * 0x1.c5bf891b4ef6ap-1;
  } else {
    double log_term = __builtin_log((1 - a) * (1 + a)), t = 0x1.152f0f0b8c9e6p+2 + 0.5 * log_term;
    y = __builtin_sqrt(__builtin_sqrt(t * t - log_term / 0.147) - t);
  }
  for (int step = 0; step < 2; step++) {
    double error = a < 0.5 ? __builtin_erf(y) - a : (1 - a) - __builtin_erfc(y);
    double newton = error / (0x1.20dd750429b6dp+0 * __builtin_exp(-y * y));
    y -= newton / (1 + y * newton);
  }
  return __builtin_copysign(y, x);
}"""
SHARED = {"lgamma_lane": _LGAMMA, "digamma_lane": _DIGAMMA, "erfinv_lane": _ERFINV}
