// Minimum and maximum of f32 where NaN wins, as in torch.minimum and torch.maximum, in one instruction (PTX ISA, "max"). For
// kernels whose threads work together, on tensor cores or on rows: their softmax waits for them. In a small loop of one
// thread over memory, which does not, the assembler takes so many loads ahead with them that it spills registers:
// portable.cuh has theirs, and the other types.

#if __CUDA_ARCH__ >= 800
TM_FN float tm_min(float a, float b)
{
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
TM_FN float tm_max(float a, float b)
{
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif
