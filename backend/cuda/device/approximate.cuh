// Functions as one instruction of the hardware computes them, subnormal numbers taken for 0. PTX ISA, "ex2", "rcp".

#define TM_APPROXIMATE(name, ptx)                                                                                     \
  TM_FN float tm_##name(float x)                                                                                      \
  {                                                                                                                   \
    float y;                                                                                                          \
    asm(ptx ".approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));                                                            \
    return y;                                                                                                         \
  }
TM_APPROXIMATE(exp2_approx, "ex2")
TM_APPROXIMATE(reciprocal_approx, "rcp")
#undef TM_APPROXIMATE

// 1 / (1 + 2^(-x log2 e)), for results of 16 bits: four instructions. The relative error is below 2^-16 wherever the result
// is a normal number.
TM_FN float tm_sigmoid_approx(float x)
{
  return tm_reciprocal_approx(1.0f + tm_exp2_approx(x * -1.44269504f));
}
template <int N> TM_FN tm_vec<float, N> tm_sigmoid_approx(tm_vec<float, N> x)
{
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = tm_sigmoid_approx(x[i]);
  return x;
}
