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
