/* Functions as one instruction computes them: as exactly as the host can, subnormal numbers taken for 0. */

inline float tm_normal(float x) { return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x; }
inline float tm_exp2_approx(float x) { return tm_normal(exp2f(tm_normal(x))); }
inline float tm_reciprocal_approx(float x) { return tm_normal(1.0f / tm_normal(x)); }
