/* Fragments: ldmatrix, stmatrix, mma.sync, wmma, dp4a. */
#pragma once

#define TM_MATRICES(count, suffix, transposed)                                                                     \
  template <class T, class P>                                                                                      \
  inline void tm_ldmatrix_x##count##suffix(T *registers, P row, tm_u32 line = TM_LINE) {                           \
    tm_sim_matrices(count, transposed, 0, registers, (void *)tm_address(row), tm_bounds_of(row), line);            \
  }                                                                                                                \
  template <class P, class T>                                                                                      \
  inline void tm_stmatrix_x##count##suffix(P row, const T *registers, tm_u32 line = TM_LINE) {                     \
    tm_sim_matrices(count, transposed, 1, (void *)registers, (void *)tm_address(row), tm_bounds_of(row), line);    \
  }
TM_MATRICES(1, , 0)
TM_MATRICES(2, , 0)
TM_MATRICES(4, , 0)
TM_MATRICES(1, _trans, 1)
TM_MATRICES(2, _trans, 1)
TM_MATRICES(4, _trans, 1)
#undef TM_MATRICES

#define TM_MMA(M, N, K, types, ta, tb, tc, A, B, C)                                                                  \
  inline void tm_mma_m##M##n##N##k##K##_##types(C *c, const A *a, const B *b, tm_u32 line = TM_LINE) {               \
    static const tm_product product = {M, N, K, tm_is_##ta, tm_is_##tb, tm_is_##tc};                                 \
    tm_sim_mma(&product, c, a, b, line);                                                                             \
  }
TM_MMA(16, 8, 16, f16_f32, f16, f16, f32, tm_f16, tm_f16, float)
TM_MMA(16, 8, 16, bf16_f32, bf16, bf16, f32, tm_bf16, tm_bf16, float)
TM_MMA(16, 8, 16, f16_f16, f16, f16, f16, tm_f16, tm_f16, tm_f16)
TM_MMA(16, 8, 8, f16_f32, f16, f16, f32, tm_f16, tm_f16, float)
TM_MMA(16, 8, 8, f16_f16, f16, f16, f16, tm_f16, tm_f16, tm_f16)
TM_MMA(16, 8, 8, bf16_f32, bf16, bf16, f32, tm_bf16, tm_bf16, float)
TM_MMA(16, 8, 8, tf32_f32, tf32, tf32, f32, float, float, float)
TM_MMA(16, 8, 4, tf32_f32, tf32, tf32, f32, float, float, float)
#define TM_MMA_BYTES(types, ta, tb, A, B)                          \
  TM_MMA(16, 8, 32, types##_i32, ta, tb, i32, A, B, int)           \
  TM_MMA(16, 8, 16, types##_i32, ta, tb, i32, A, B, int)           \
  TM_MMA(8, 8, 16, types##_i32, ta, tb, i32, A, B, int)
TM_MMA_BYTES(i8, i8, i8, signed char, signed char)
TM_MMA_BYTES(i8_u8, i8, u8, signed char, unsigned char)
TM_MMA_BYTES(u8_i8, u8, i8, unsigned char, signed char)
TM_MMA_BYTES(u8, u8, u8, unsigned char, unsigned char)
#undef TM_MMA_BYTES
TM_MMA(16, 8, 32, e4m3_f32, e4m3, e4m3, f32, tm_e4m3, tm_e4m3, float)
TM_MMA(16, 8, 32, e4m3_e5m2_f32, e4m3, e5m2, f32, tm_e4m3, tm_e5m2, float)
TM_MMA(16, 8, 32, e5m2_e4m3_f32, e5m2, e4m3, f32, tm_e5m2, tm_e4m3, float)
TM_MMA(16, 8, 32, e5m2_f32, e5m2, e5m2, f32, tm_e5m2, tm_e5m2, float)
TM_MMA(8, 8, 4, f64_f64, f64, f64, f64, double, double, double)
#undef TM_MMA

/* Four products of 8 x 8 x 4, each by a quad-pair. */
#define TM_QUAD_MMA(types, tc, C)                                                                          \
  inline void tm_quad_mma_m8n8k4_##types(C *c, const tm_f16 *a, const tm_f16 *b, tm_u32 line = TM_LINE) { \
    static const tm_product product = {16, 16, 4, tm_is_f16, tm_is_f16, tm_is_##tc};                       \
    tm_sim_quad_mma(&product, c, a, b, line);                                                              \
  }
TM_QUAD_MMA(f16_f32, f32, float)
TM_QUAD_MMA(f16_f16, f16, tm_f16)
#undef TM_QUAD_MMA

/* The nearest value with ten bits of mantissa, the one of larger magnitude where two are equally near. */
inline float tm_round_tf32(float x) {
  const tm_u32 u = tm_bits<tm_u32>(x);
  return (u & 0x7f800000u) == 0x7f800000u ? x : tm_bits<float>((u + 0x1000u) & 0xffffe000u);
}
template <int N> inline tm_vec<float, N> tm_round_tf32(tm_vec<float, N> x) {
  for (int i = 0; i < N; i++) x[i] = tm_round_tf32(x[i]);
  return x;
}

/* Fragments of wmma: operand 0 is a, 1 is b, 2 is c. */
#define TM_WMMA_LOAD(operand, number, M, N, K, type, T)                                                             \
  template <int ByColumns, class P>                                                                                 \
  inline void tm_wmma_load_##operand##_m##M##n##N##k##K##_##type(T *fragment, P memory, int stride,                 \
                                                                 tm_u32 line = TM_LINE) {                           \
    static const tm_product product = {M, N, K, tm_is_##type, tm_is_##type, tm_is_##type};                          \
    tm_sim_wmma_move(&product, number, 0, fragment, (void *)tm_address(memory), tm_bounds_of(memory), stride,       \
                     ByColumns, line);                                                                              \
  }
#define TM_WMMA_STORE(M, N, K, type, T)                                                                             \
  template <int ByColumns, class P>                                                                                 \
  inline void tm_wmma_store_m##M##n##N##k##K##_##type(P memory, const T *fragment, int stride,                      \
                                                      tm_u32 line = TM_LINE) {                                      \
    static const tm_product product = {M, N, K, tm_is_##type, tm_is_##type, tm_is_##type};                          \
    tm_sim_wmma_move(&product, 2, 1, (void *)fragment, (void *)tm_address(memory), tm_bounds_of(memory), stride,    \
                     ByColumns, line);                                                                              \
  }
#define TM_WMMA_MMA(M, N, K, types, tab, tc, A, C)                                                                  \
  template <int ByColumnsA, int ByColumnsB>                                                                         \
  inline void tm_wmma_mma_m##M##n##N##k##K##_##types(C *c, const A *a, const A *b, tm_u32 line = TM_LINE) {         \
    static const tm_product product = {M, N, K, tm_is_##tab, tm_is_##tab, tm_is_##tc};                              \
    tm_sim_wmma(&product, c, a, b, line);                                                                           \
  }
#define TM_WMMA_OPERANDS(M, N, K, type, T) TM_WMMA_LOAD(a, 0, M, N, K, type, T) TM_WMMA_LOAD(b, 1, M, N, K, type, T)
#define TM_WMMA_RESULTS(M, N, K, type, T) TM_WMMA_LOAD(c, 2, M, N, K, type, T) TM_WMMA_STORE(M, N, K, type, T)
#define TM_WMMA_SHAPE(M, N, K)                                        \
  TM_WMMA_OPERANDS(M, N, K, f16, tm_f16)                              \
  TM_WMMA_OPERANDS(M, N, K, bf16, tm_bf16)                            \
  TM_WMMA_OPERANDS(M, N, K, i8, signed char)                          \
  TM_WMMA_OPERANDS(M, N, K, u8, unsigned char)                        \
  TM_WMMA_RESULTS(M, N, K, f32, float)                                \
  TM_WMMA_RESULTS(M, N, K, f16, tm_f16)                               \
  TM_WMMA_RESULTS(M, N, K, i32, int)                                  \
  TM_WMMA_MMA(M, N, K, f16_f32, f16, f32, tm_f16, float)              \
  TM_WMMA_MMA(M, N, K, f16_f16, f16, f16, tm_f16, tm_f16)             \
  TM_WMMA_MMA(M, N, K, bf16_f32, bf16, f32, tm_bf16, float)           \
  TM_WMMA_MMA(M, N, K, i8_i32, i8, i32, signed char, int)             \
  TM_WMMA_MMA(M, N, K, u8_i32, u8, i32, unsigned char, int)
TM_WMMA_SHAPE(16, 16, 16)
TM_WMMA_SHAPE(32, 8, 16)
TM_WMMA_SHAPE(8, 32, 16)

#define TM_DP4A(types, A, B)                                                   \
  inline void tm_dp4a_##types##_i32(int *c, const A *a, const B *b) {          \
    for (int i = 0; i < 4; i++) c[0] = (int)((tm_u32)c[0] + (tm_u32)(a[i] * b[i])); \
  }
TM_DP4A(i8, signed char, signed char)
TM_DP4A(i8_u8, signed char, unsigned char)
TM_DP4A(u8_i8, unsigned char, signed char)
TM_DP4A(u8, unsigned char, unsigned char)
#undef TM_DP4A
