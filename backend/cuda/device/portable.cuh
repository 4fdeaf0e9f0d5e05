// Arithmetic of scalars and vectors with PyTorch's meaning, in plain C++: for the GPU and for the simulator alike. It
// stands on TM_FN, tm_f16, tm_bf16, tm_value, tm_inf, tm_nan and tm_vec of what precedes it, and on the functions of
// <math.h> with CUDA's rsqrt, erfinv and their float forms.

// ---- Conversions, as Tensor.to: floats are truncated, integers wrap, anything but 0 is true.

template <class T> TM_FN T tm_value(T x) { return x; }

template <class To, class From> struct tm_conversion {
  static TM_FN To of(From x) { return static_cast<To>(x); }
};
template <class From> struct tm_conversion<tm_f16, From> {
  static TM_FN tm_f16 of(From x) { return tm_f16(static_cast<float>(x)); }
};
template <class From> struct tm_conversion<tm_bf16, From> {
  static TM_FN tm_bf16 of(From x) { return tm_bf16(static_cast<float>(x)); }
};
#define TM_CONVERT_BY_WAY_OF_I64(To, From)                                                   \
  template <> struct tm_conversion<To, From> {                                               \
    static TM_FN To of(From x) { return static_cast<To>(static_cast<long long>(x)); }               \
  };
TM_CONVERT_BY_WAY_OF_I64(signed char, float)
TM_CONVERT_BY_WAY_OF_I64(signed char, double)
TM_CONVERT_BY_WAY_OF_I64(unsigned char, float)
TM_CONVERT_BY_WAY_OF_I64(unsigned char, double)
TM_CONVERT_BY_WAY_OF_I64(short, float)
TM_CONVERT_BY_WAY_OF_I64(short, double)
#undef TM_CONVERT_BY_WAY_OF_I64

// ---- 8-bit floats, from and to f32 with PyTorch's rounding: to nearest, ties to even. e4m3 has no infinity, and what is
// too large becomes the largest; e5m2 is half of an f16. Subnormal numbers are rounded by adding a power of two, below
// whose last place lies what is lost, and read by subtracting one.

union tm_float_bits { float value; unsigned bits; };
TM_FN unsigned tm_bits_of(float x)
{
  tm_float_bits u;
  u.value = x;
  return u.bits;
}
TM_FN float tm_float_of(unsigned bits)
{
  tm_float_bits u;
  u.bits = bits;
  return u.value;
}

// From `smallest`, the bits of the least normal number, on `dropped` bits of the mantissa are rounded away and the
// exponent is counted from another `bias`; `power` is what rounds those below. `beyond` and what is larger becomes `most`.
template <class Float8>
TM_FN Float8 tm_narrowed(float x, unsigned smallest, unsigned power, int dropped, unsigned bias, unsigned beyond,
                         unsigned most)
{
  const unsigned all = tm_bits_of(x), u = all & 0x7fffffffu;
  unsigned r = ((u + (1u << (dropped - 1)) - 1 + ((u >> dropped) & 1)) >> dropped) - bias;
  if (u < smallest) r = tm_bits_of(tm_float_of(u) + tm_float_of(power)) - power;
  if (u >= beyond) r = most;
  if (u > 0x7f800000u) r = 0x7f;
  Float8 y;
  y.bits = static_cast<unsigned char>(r | ((all >> 24) & 0x80));
  return y;
}
template <class From> struct tm_conversion<tm_e4m3, From> {
  static TM_FN tm_e4m3 of(From x)
  {
    return tm_narrowed<tm_e4m3>(static_cast<float>(x), 0x3c800000u, 0x46800000u, 20, 960, 0x43e00000u, 0x7e);
  }
};
template <class From> struct tm_conversion<tm_e5m2, From> {
  static TM_FN tm_e5m2 of(From x)
  {
    return tm_narrowed<tm_e5m2>(static_cast<float>(x), 0x38800000u, 0x43000000u, 21, 448, 0x47700000u, 0x7c);
  }
};
TM_FN float tm_value(tm_e4m3 x)
{
  const unsigned m = x.bits & 0x7fu, sign = (x.bits & 0x80u) << 24;
  const float small = tm_float_of((m << 20) + 0x3c800000u) - tm_float_of(0x3c800000u);
  const float y = m == 0x7f ? tm_nan() : m < 8 ? small : tm_float_of((m << 20) + 0x3c000000u);
  return tm_float_of(tm_bits_of(y) | sign);
}
TM_FN float tm_value(tm_e5m2 x)
{
  const unsigned m = x.bits & 0x7fu, sign = (x.bits & 0x80u) << 24;
  const float small = tm_float_of((m << 21) + 0x38800000u) - tm_float_of(0x38800000u);
  const float y = m >= 0x7c ? tm_float_of(0x7f800000u | (m & 3) << 21) : m < 4 ? small : tm_float_of((m << 21) + 0x38000000u);
  return tm_float_of(tm_bits_of(y) | sign);
}

template <class To, class From> TM_FN To tm_cast(From x)
{
  return tm_conversion<To, decltype(tm_value(x))>::of(tm_value(x));
}

// ---- 16-bit floats: every operation is rounded.

#define TM_HALF(T)                                                                           \
  TM_FN T operator+(T a, T b) { return T(tm_value(a) + tm_value(b)); }                       \
  TM_FN T operator-(T a, T b) { return T(tm_value(a) - tm_value(b)); }                       \
  TM_FN T operator*(T a, T b) { return T(tm_value(a) * tm_value(b)); }                       \
  TM_FN T operator/(T a, T b) { return T(tm_value(a) / tm_value(b)); }                       \
  TM_FN T operator-(T a) { return T(-tm_value(a)); }                                         \
  TM_FN bool operator<(T a, T b) { return tm_value(a) < tm_value(b); }                       \
  TM_FN bool operator<=(T a, T b) { return tm_value(a) <= tm_value(b); }                     \
  TM_FN bool operator>(T a, T b) { return tm_value(a) > tm_value(b); }                       \
  TM_FN bool operator>=(T a, T b) { return tm_value(a) >= tm_value(b); }                     \
  TM_FN bool operator==(T a, T b) { return tm_value(a) == tm_value(b); }                     \
  TM_FN bool operator!=(T a, T b) { return tm_value(a) != tm_value(b); }
TM_HALF(tm_f16)
TM_HALF(tm_bf16)
#undef TM_HALF

// ---- Integers wrap. A division by 0 gives -1, its remainder the dividend.

template <class T> struct tm_unsigned { using type = unsigned long long; };
template <> struct tm_unsigned<int> { using type = unsigned; };
template <> struct tm_unsigned<short> { using type = unsigned; };
template <> struct tm_unsigned<signed char> { using type = unsigned; };
template <> struct tm_unsigned<unsigned char> { using type = unsigned; };

#define TM_WRAPPING(name, op)                                                                \
  template <class T> TM_FN T name(T a, T b)                                                  \
  {                                                                                          \
    using U = typename tm_unsigned<T>::type;                                                 \
    return static_cast<T>(static_cast<U>(a) op static_cast<U>(b));                           \
  }
TM_WRAPPING(tm_add, +)
TM_WRAPPING(tm_sub, -)
TM_WRAPPING(tm_mul, *)
#undef TM_WRAPPING

template <class T> TM_FN T tm_neg(T a) { return tm_sub<T>(0, a); }
template <class T> TM_FN T tm_not(T a) { return static_cast<T>(~a); }
template <class T> TM_FN T tm_shl(T a, T b)
{
  return static_cast<T>(static_cast<typename tm_unsigned<T>::type>(a) << b);
}
template <class T> TM_FN T tm_shr(T a, T b) { return static_cast<T>(a >> b); }
template <class T> TM_FN T tm_and(T a, T b) { return static_cast<T>(a & b); }
template <class T> TM_FN T tm_or(T a, T b) { return static_cast<T>(a | b); }
template <class T> TM_FN T tm_xor(T a, T b) { return static_cast<T>(a ^ b); }

template <class T> TM_FN T tm_floordiv(T a, T b)
{
  if (b == 0) return static_cast<T>(-1);
  if (b == static_cast<T>(-1) && b < 0) return tm_neg<T>(a);
  return static_cast<T>(a / b - (a % b != 0 && (a < 0) != (b < 0)));
}
template <> TM_FN unsigned char tm_floordiv<unsigned char>(unsigned char a, unsigned char b)
{
  return static_cast<unsigned char>(b == 0 ? 255 : a / b);
}
template <class T> TM_FN T tm_mod(T a, T b) { return b == 0 ? a : tm_sub<T>(a, tm_mul<T>(b, tm_floordiv<T>(a, b))); }

// An index that may count from the end. One that is out of range sets the flag and becomes 0.
template <class Flag> TM_FN long long tm_checked_index(long long i, long long size, Flag error)
{
  if (i < 0) i += size;
  if (i >= 0 && i < size) return i;
  error[0] = 1;
  return 0;
}

// ---- Functions of floats.

#define TM_FLOATS(name, c)                                                                   \
  TM_FN float tm_##name(float x) { return c##f(x); }                                         \
  TM_FN double tm_##name(double x) { return c(x); }
#define TM_FLOATS_2(name, c)                                                                 \
  TM_FN float tm_##name(float x, float y) { return c##f(x, y); }                             \
  TM_FN double tm_##name(double x, double y) { return c(x, y); }
TM_FLOATS(exp, exp)
TM_FLOATS(exp2, exp2)
TM_FLOATS(expm1, expm1)
TM_FLOATS(log, log)
TM_FLOATS(log2, log2)
TM_FLOATS(log10, log10)
TM_FLOATS(log1p, log1p)
TM_FLOATS(sin, sin)
TM_FLOATS(cos, cos)
TM_FLOATS(tan, tan)
TM_FLOATS(asin, asin)
TM_FLOATS(acos, acos)
TM_FLOATS(atan, atan)
TM_FLOATS(sinh, sinh)
TM_FLOATS(cosh, cosh)
TM_FLOATS(tanh, tanh)
TM_FLOATS(asinh, asinh)
TM_FLOATS(acosh, acosh)
TM_FLOATS(atanh, atanh)
TM_FLOATS(erf, erf)
TM_FLOATS(erfc, erfc)
TM_FLOATS(erfinv, erfinv)
TM_FLOATS(lgamma, lgamma)
TM_FLOATS(sqrt, sqrt)
TM_FLOATS(rsqrt, rsqrt)
TM_FLOATS(floor, floor)
TM_FLOATS(ceil, ceil)
TM_FLOATS(trunc, trunc)
TM_FLOATS(round, rint)
TM_FLOATS(abs, fabs)
TM_FLOATS_2(pow, pow)
TM_FLOATS_2(atan2, atan2)
TM_FLOATS_2(fmod, fmod)
TM_FLOATS_2(fmin, fmin)
TM_FLOATS_2(fmax, fmax)
TM_FLOATS_2(copysign, copysign)
TM_FLOATS_2(hypot, hypot)
#undef TM_FLOATS
#undef TM_FLOATS_2

TM_FN float tm_fma(float x, float y, float z) { return fmaf(x, y, z); }
TM_FN double tm_fma(double x, double y, double z) { return fma(x, y, z); }
TM_FN tm_f16 tm_fma(tm_f16 x, tm_f16 y, tm_f16 z) { return tm_f16(fmaf(tm_value(x), tm_value(y), tm_value(z))); }
TM_FN tm_bf16 tm_fma(tm_bf16 x, tm_bf16 y, tm_bf16 z) { return tm_bf16(fmaf(tm_value(x), tm_value(y), tm_value(z))); }

template <class T> TM_FN T tm_reciprocal(T x) { return T(1) / x; }
template <class T> TM_FN T tm_sigmoid(T x) { return T(1) / (T(1) + tm_exp(-x)); }
template <class T> TM_FN T tm_sign(T x) { return T((x > T(0)) - (x < T(0))); }
template <class T> TM_FN bool tm_isnan(T x) { return x != x; }
template <class T> TM_FN bool tm_isfinite(T x) { return x - x == T(0); }
template <class T> TM_FN bool tm_isinf(T x) { return x == x && !tm_isfinite(x); }
template <class T> TM_FN bool tm_signbit(T x) { return tm_copysign(T(1), x) < T(0); }

// The remainder has the divisor's sign; floor_div is the floor of the exact quotient, as Python's on floats.
template <class T> TM_FN T tm_remainder(T a, T b)
{
  T rest = tm_fmod(a, b);
  return rest != T(0) && (b < T(0)) != (rest < T(0)) ? rest + b : rest;
}
template <class T> TM_FN T tm_floor_div(T a, T b)
{
  if (b == T(0)) return a / b;
  T rest = tm_fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != T(0) && (b < T(0)) != (rest < T(0))) quotient -= T(1);
  if (quotient == T(0)) return tm_copysign(T(0), a / b);
  T whole = tm_floor(quotient);
  return quotient - whole > T(0.5) ? whole + T(1) : whole;
}

// Recurrence up to 10, then the asymptotic series; reflection for negative arguments (Abramowitz & Stegun, 6.3).
template <class T> TM_FN T tm_digamma(T x)
{
  if (x == T(0)) return tm_copysign(T(tm_inf()), -x);
  if (x < T(0) && x == tm_floor(x)) return T(tm_nan());
  T result = T(0);
  if (x < T(0)) {
    const T pi = T(3.14159265358979323846);
    result = -pi / tm_tan(pi * tm_fmod(x, T(1)));
    x = T(1) - x;
  }
  for (; x < T(10); x += T(1)) result -= T(1) / x;
  if (tm_isinf(x)) return x;
  T z = T(1) / (x * x);
  T series = T(1. / 132) - z * (T(691. / 32760) - z * T(1. / 12));
  series = T(1. / 252) - z * (T(1. / 240) - z * series);
  series = z * (T(1. / 12) - z * (T(1. / 120) - z * series));
  return result + tm_log(x) - T(0.5) / x - series;
}

// NaN wins, as in torch.minimum and torch.maximum.
template <class T> TM_FN T tm_min(T a, T b) { return a != a || a < b ? a : b; }
template <class T> TM_FN T tm_max(T a, T b) { return a != a || a > b ? a : b; }
template <class T> TM_FN T tm_abs(T a) { return a < T(0) ? tm_neg<T>(a) : a; }
template <> TM_FN unsigned char tm_abs<unsigned char>(unsigned char a) { return a; }

#define TM_OF_HALVES(name)                                                                   \
  TM_FN tm_f16 tm_##name(tm_f16 x) { return tm_f16(tm_##name(tm_value(x))); }                \
  TM_FN tm_bf16 tm_##name(tm_bf16 x) { return tm_bf16(tm_##name(tm_value(x))); }
#define TM_OF_HALVES_2(name)                                                                 \
  TM_FN tm_f16 tm_##name(tm_f16 x, tm_f16 y) { return tm_f16(tm_##name(tm_value(x), tm_value(y))); } \
  TM_FN tm_bf16 tm_##name(tm_bf16 x, tm_bf16 y) { return tm_bf16(tm_##name(tm_value(x), tm_value(y))); }
#define TM_PREDICATE_OF_HALVES(name)                                                         \
  TM_FN bool tm_##name(tm_f16 x) { return tm_##name(tm_value(x)); }                          \
  TM_FN bool tm_##name(tm_bf16 x) { return tm_##name(tm_value(x)); }

// ---- Vectors, lane by lane.

#define TM_LANES _Pragma("unroll") for (int i = 0; i < N; i++)

template <int N, class T> TM_FN tm_vec<T, N> tm_splat(T x)
{
  tm_vec<T, N> y;
  TM_LANES y[i] = x;
  return y;
}
template <int N, class T> TM_FN tm_vec<T, N> tm_ramp(T base, T stride)
{
  tm_vec<T, N> y;
  TM_LANES y[i] = base + i * stride;
  return y;
}
template <int N, class T> TM_FN tm_vec<T, N> tm_get(const T *registers)
{
  tm_vec<T, N> y;
  TM_LANES y[i] = registers[i];
  return y;
}
template <class T, int N> TM_FN void tm_put(T *registers, tm_vec<T, N> x) { TM_LANES registers[i] = x[i]; }
template <class P, class I, int N> TM_FN auto tm_gather(P p, tm_vec<I, N> at)
{
  auto y = tm_splat<N>(p[at[0]]);
  TM_LANES y[i] = p[at[i]];
  return y;
}
template <class P, class I, class T, int N> TM_FN void tm_scatter(P p, tm_vec<I, N> at, tm_vec<T, N> x)
{
  TM_LANES p[at[i]] = x[i];
}
template <class T, int N> TM_FN tm_vec<T, N> tm_select(tm_vec<bool, N> condition, tm_vec<T, N> a, tm_vec<T, N> b)
{
  TM_LANES a[i] = condition[i] ? a[i] : b[i];
  return a;
}
template <class To, class T, int N> TM_FN tm_vec<To, N> tm_cast(tm_vec<T, N> x)
{
  tm_vec<To, N> y;
  TM_LANES y[i] = tm_cast<To>(x[i]);
  return y;
}
template <class Flag, int N>
TM_FN tm_vec<long long, N> tm_checked_index(tm_vec<long long, N> at, tm_vec<long long, N> size, Flag error)
{
  TM_LANES at[i] = tm_checked_index(at[i], size[i], error);
  return at;
}

#define TM_VECTOR_INFIX(op)                                                                  \
  template <class T, int N> TM_FN tm_vec<T, N> operator op(tm_vec<T, N> a, tm_vec<T, N> b)   \
  {                                                                                          \
    TM_LANES a[i] = a[i] op b[i];                                                            \
    return a;                                                                                \
  }
TM_VECTOR_INFIX(+)
TM_VECTOR_INFIX(-)
TM_VECTOR_INFIX(*)
TM_VECTOR_INFIX(/)
TM_VECTOR_INFIX(%)
TM_VECTOR_INFIX(&)
TM_VECTOR_INFIX(|)
TM_VECTOR_INFIX(^)
TM_VECTOR_INFIX(&&)
TM_VECTOR_INFIX(||)
#undef TM_VECTOR_INFIX

#define TM_VECTOR_COMPARE(op)                                                                \
  template <class T, int N> TM_FN tm_vec<bool, N> operator op(tm_vec<T, N> a, tm_vec<T, N> b) \
  {                                                                                          \
    tm_vec<bool, N> y;                                                                       \
    TM_LANES y[i] = a[i] op b[i];                                                            \
    return y;                                                                                \
  }
TM_VECTOR_COMPARE(<)
TM_VECTOR_COMPARE(<=)
TM_VECTOR_COMPARE(>)
TM_VECTOR_COMPARE(>=)
TM_VECTOR_COMPARE(==)
TM_VECTOR_COMPARE(!=)
#undef TM_VECTOR_COMPARE

template <class T, int N> TM_FN tm_vec<T, N> operator-(tm_vec<T, N> a)
{
  TM_LANES a[i] = -a[i];
  return a;
}
template <int N> TM_FN tm_vec<bool, N> operator!(tm_vec<bool, N> a)
{
  TM_LANES a[i] = !a[i];
  return a;
}

#define TM_VECTOR_1(name)                                                                    \
  template <class T, int N> TM_FN tm_vec<T, N> tm_##name(tm_vec<T, N> x)                     \
  {                                                                                          \
    TM_LANES x[i] = tm_##name(x[i]);                                                         \
    return x;                                                                                \
  }
#define TM_VECTOR_2(name)                                                                    \
  template <class T, int N> TM_FN tm_vec<T, N> tm_##name(tm_vec<T, N> x, tm_vec<T, N> y)     \
  {                                                                                          \
    TM_LANES x[i] = tm_##name(x[i], y[i]);                                                   \
    return x;                                                                                \
  }
#define TM_VECTOR_PREDICATE(name)                                                            \
  template <class T, int N> TM_FN tm_vec<bool, N> tm_##name(tm_vec<T, N> x)                  \
  {                                                                                          \
    tm_vec<bool, N> y;                                                                       \
    TM_LANES y[i] = tm_##name(x[i]);                                                         \
    return y;                                                                                \
  }

#define TM_FUNCTIONS_1(each)                                                                 \
  each(exp) each(exp2) each(expm1) each(log) each(log2) each(log10) each(log1p) each(sin)    \
  each(cos) each(tan) each(asin) each(acos) each(atan) each(sinh) each(cosh) each(tanh)      \
  each(asinh) each(acosh) each(atanh) each(erf) each(erfc) each(erfinv) each(lgamma)         \
  each(digamma) each(sigmoid) each(sqrt) each(rsqrt) each(reciprocal) each(floor) each(ceil) \
  each(trunc) each(round) each(sign) each(abs)
#define TM_FUNCTIONS_2(each)                                                                 \
  each(pow) each(atan2) each(fmod) each(remainder) each(floor_div) each(fmin) each(fmax)     \
  each(copysign) each(hypot)
#define TM_PREDICATES(each) each(isnan) each(isinf) each(isfinite) each(signbit)
#define TM_INTEGER_2(each)                                                                   \
  each(min) each(max) each(add) each(sub) each(mul) each(floordiv) each(mod) each(shl)       \
  each(shr) each(and) each(or) each(xor)

TM_FUNCTIONS_1(TM_OF_HALVES)
TM_FUNCTIONS_2(TM_OF_HALVES_2)
TM_PREDICATES(TM_PREDICATE_OF_HALVES)
TM_FUNCTIONS_1(TM_VECTOR_1)
TM_FUNCTIONS_2(TM_VECTOR_2)
TM_PREDICATES(TM_VECTOR_PREDICATE)
TM_INTEGER_2(TM_VECTOR_2)
TM_VECTOR_1(neg)
TM_VECTOR_1(not)

template <class T, int N> TM_FN tm_vec<T, N> tm_fma(tm_vec<T, N> x, tm_vec<T, N> y, tm_vec<T, N> z)
{
  TM_LANES x[i] = tm_fma(x[i], y[i], z[i]);
  return x;
}

#define TM_FOLD(name, step)                                                                  \
  template <class T, int N> TM_FN T tm_lanes_##name(tm_vec<T, N> x)                          \
  {                                                                                          \
    T total = x[0];                                                                          \
    _Pragma("unroll") for (int i = 1; i < N; i++) total = step;                              \
    return total;                                                                            \
  }
TM_FOLD(sum, total + x[i])
TM_FOLD(prod, total * x[i])
TM_FOLD(min, tm_min(total, x[i]))
TM_FOLD(max, tm_max(total, x[i]))
TM_FOLD(and, total & x[i])
TM_FOLD(or, total | x[i])
#undef TM_FOLD
