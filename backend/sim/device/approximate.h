/* Functions as one instruction computes them: as exactly as the host can, subnormal numbers taken for 0. */

inline float tm_normal(float x) { return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x; }
inline float tm_exp2_approx(float x) { return tm_normal(exp2f(tm_normal(x))); }
inline float tm_reciprocal_approx(float x) { return tm_normal(1.0f / tm_normal(x)); }
inline float tm_sigmoid_approx(float x) { return tm_reciprocal_approx(1.0f + tm_exp2_approx(x * -1.44269504f)); }
template <int N> inline tm_vec<float, N> tm_sigmoid_approx(tm_vec<float, N> x) {
  for (int i = 0; i < N; i++) x[i] = tm_sigmoid_approx(x[i]);
  return x;
}
