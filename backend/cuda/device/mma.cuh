// Products by one warp's tensor cores: c += a * b on fragments, each in slot order of its owner. PTX ISA, "mma".

// The operands as registers of 32 bits: four of c, four of a and two of b, and fewer for smaller shapes.
#define TM_MMA_442(name, text, C, A, B, word, letter)                                                                 \
  TM_FN void name(C *c, const A *a, const B *b)                                                                       \
  {                                                                                                                   \
    word *d = reinterpret_cast<word *>(c);                                                                            \
    const unsigned *x = reinterpret_cast<const unsigned *>(a), *y = reinterpret_cast<const unsigned *>(b);            \
    asm("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
        : "+" letter(d[0]), "+" letter(d[1]), "+" letter(d[2]), "+" letter(d[3])                                      \
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));                                          \
  }
#define TM_MMA_421(name, text, C, A, B, word, letter)                                                                 \
  TM_FN void name(C *c, const A *a, const B *b)                                                                       \
  {                                                                                                                   \
    word *d = reinterpret_cast<word *>(c);                                                                            \
    const unsigned *x = reinterpret_cast<const unsigned *>(a), *y = reinterpret_cast<const unsigned *>(b);            \
    asm("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                               \
        : "+" letter(d[0]), "+" letter(d[1]), "+" letter(d[2]), "+" letter(d[3])                                      \
        : "r"(x[0]), "r"(x[1]), "r"(y[0]));                                                                           \
  }
#define TM_MMA_242(name, text, C, A, B)                                                                               \
  TM_FN void name(C *c, const A *a, const B *b)                                                                       \
  {                                                                                                                   \
    unsigned *d = reinterpret_cast<unsigned *>(c);                                                                    \
    const unsigned *x = reinterpret_cast<const unsigned *>(a), *y = reinterpret_cast<const unsigned *>(b);            \
    asm("mma.sync.aligned." text " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"                                   \
        : "+r"(d[0]), "+r"(d[1])                                                                                      \
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));                                          \
  }
#define TM_MMA_221(name, text, C, A, B)                                                                               \
  TM_FN void name(C *c, const A *a, const B *b)                                                                       \
  {                                                                                                                   \
    unsigned *d = reinterpret_cast<unsigned *>(c);                                                                    \
    const unsigned *x = reinterpret_cast<const unsigned *>(a), *y = reinterpret_cast<const unsigned *>(b);            \
    asm("mma.sync.aligned." text " {%0, %1}, {%2, %3}, {%4}, {%0, %1};"                                               \
        : "+r"(d[0]), "+r"(d[1])                                                                                      \
        : "r"(x[0]), "r"(x[1]), "r"(y[0]));                                                                           \
  }
#define TM_MMA_211(name, text, C, A, B)                                                                               \
  TM_FN void name(C *c, const A *a, const B *b)                                                                       \
  {                                                                                                                   \
    unsigned *d = reinterpret_cast<unsigned *>(c);                                                                    \
    asm("mma.sync.aligned." text " {%0, %1}, {%2}, {%3}, {%0, %1};"                                                   \
        : "+r"(d[0]), "+r"(d[1])                                                                                      \
        : "r"(*reinterpret_cast<const unsigned *>(a)), "r"(*reinterpret_cast<const unsigned *>(b)));                  \
  }

// Four products, each by a quad-pair: lanes 4q to 4q + 3, and 16 more. PTX ISA, "mma.m8n8k4".
TM_FN void tm_quad_mma_m8n8k4_f16_f32(float *c, const tm_f16 *a, const tm_f16 *b)
{
  const unsigned *x = reinterpret_cast<const unsigned *>(a), *y = reinterpret_cast<const unsigned *>(b);
  asm("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11},"
      " {%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(x[0]), "r"(x[1]), "r"(y[0]), "r"(y[1]));
}
TM_FN void tm_quad_mma_m8n8k4_f16_f16(tm_f16 *c, const tm_f16 *a, const tm_f16 *b)
{
  unsigned *d = reinterpret_cast<unsigned *>(c);
  const unsigned *x = reinterpret_cast<const unsigned *>(a), *y = reinterpret_cast<const unsigned *>(b);
  asm("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(x[0]), "r"(x[1]), "r"(y[0]), "r"(y[1]));
}

TM_MMA_442(tm_mma_m16n8k16_f16_f32, "m16n8k16.row.col.f32.f16.f16.f32", float, tm_f16, tm_f16, float, "f")
TM_MMA_442(tm_mma_m16n8k16_bf16_f32, "m16n8k16.row.col.f32.bf16.bf16.f32", float, tm_bf16, tm_bf16, float, "f")
TM_MMA_242(tm_mma_m16n8k16_f16_f16, "m16n8k16.row.col.f16.f16.f16.f16", tm_f16, tm_f16, tm_f16)
TM_MMA_421(tm_mma_m16n8k8_f16_f32, "m16n8k8.row.col.f32.f16.f16.f32", float, tm_f16, tm_f16, float, "f")
TM_MMA_221(tm_mma_m16n8k8_f16_f16, "m16n8k8.row.col.f16.f16.f16.f16", tm_f16, tm_f16, tm_f16)
TM_MMA_421(tm_mma_m16n8k8_bf16_f32, "m16n8k8.row.col.f32.bf16.bf16.f32", float, tm_bf16, tm_bf16, float, "f")
TM_MMA_442(tm_mma_m16n8k8_tf32_f32, "m16n8k8.row.col.f32.tf32.tf32.f32", float, float, float, float, "f")
TM_MMA_421(tm_mma_m16n8k4_tf32_f32, "m16n8k4.row.col.f32.tf32.tf32.f32", float, float, float, float, "f")

#define TM_MMA_BYTES(types, ptx, A, B)                                                                                \
  TM_MMA_442(tm_mma_m16n8k32_##types##_i32, "m16n8k32.row.col.s32." ptx ".s32", int, A, B, int, "r")                  \
  TM_MMA_421(tm_mma_m16n8k16_##types##_i32, "m16n8k16.row.col.s32." ptx ".s32", int, A, B, int, "r")                  \
  TM_MMA_211(tm_mma_m8n8k16_##types##_i32, "m8n8k16.row.col.s32." ptx ".s32", int, A, B)
TM_MMA_BYTES(i8, "s8.s8", signed char, signed char)
TM_MMA_BYTES(i8_u8, "s8.u8", signed char, unsigned char)
TM_MMA_BYTES(u8_i8, "u8.s8", unsigned char, signed char)
TM_MMA_BYTES(u8, "u8.u8", unsigned char, unsigned char)
#undef TM_MMA_BYTES

#define TM_MMA_FP8(types, ptx, A, B)                                                                                  \
  TM_MMA_442(tm_mma_m16n8k32_##types##_f32, "m16n8k32.row.col.f32." ptx ".f32", float, A, B, float, "f")
TM_MMA_FP8(e4m3, "e4m3.e4m3", tm_e4m3, tm_e4m3)
TM_MMA_FP8(e4m3_e5m2, "e4m3.e5m2", tm_e4m3, tm_e5m2)
TM_MMA_FP8(e5m2_e4m3, "e5m2.e4m3", tm_e5m2, tm_e4m3)
TM_MMA_FP8(e5m2, "e5m2.e5m2", tm_e5m2, tm_e5m2)
#undef TM_MMA_FP8

TM_FN void tm_mma_m8n8k4_f64_f64(double *c, const double *a, const double *b)
{
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(c[0]), "+d"(c[1])
      : "d"(a[0]), "d"(b[0]));
}

#undef TM_MMA_442
#undef TM_MMA_421
#undef TM_MMA_242
#undef TM_MMA_221
#undef TM_MMA_211

// The nearest value with ten bits of mantissa, the one of larger magnitude where two are equally near.
TM_FN float tm_round_tf32(float x)
{
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}
template <int N> TM_FN tm_vec<float, N> tm_round_tf32(tm_vec<float, N> x)
{
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = tm_round_tf32(x[i]);
  return x;
}
