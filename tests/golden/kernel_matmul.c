/* cpu.matmul(tile=7x32, rows=7, k_blocks=1) */
void tm_matmul(const f32 *restrict pin0_0, const f32 *restrict pin1_1, const f32 *restrict pin2_2, f32 *restrict pout0_3)
{
  f32 ttile_4[168] __attribute__((aligned(64)));
  {
    const f32 *a = pin0_0 + 0LL, *b = pin1_1 + 0LL;
    f32 *out = ttile_4 + 0LL;
    i64 n0;
    __asm__ volatile(
      "vpxord %%zmm31, %%zmm31, %%zmm31\n"
      "vmovaps %%zmm31, %%zmm30\n"
      "vmovaps %%zmm31, %%zmm29\n"
      "vmovaps %%zmm31, %%zmm28\n"
      "vmovaps %%zmm31, %%zmm27\n"
      "vmovaps %%zmm31, %%zmm26\n"
      "vmovaps %%zmm31, %%zmm25\n"
      "movl $20, %k[n0]\n"
      ".p2align 6\n"
      ".Ltile%=_0:\n"
      "vmovups 0(%[b]), %%zmm0\n"
      "addq $96, %[b]\n"
      "vfmadd231ps 0(%[a])%{1to16%}, %%zmm0, %%zmm31\n"
      "vfmadd231ps 80(%[a])%{1to16%}, %%zmm0, %%zmm30\n"
      "vfmadd231ps 160(%[a])%{1to16%}, %%zmm0, %%zmm29\n"
      "vfmadd231ps 240(%[a])%{1to16%}, %%zmm0, %%zmm28\n"
      "vfmadd231ps 320(%[a])%{1to16%}, %%zmm0, %%zmm27\n"
      "vfmadd231ps 400(%[a])%{1to16%}, %%zmm0, %%zmm26\n"
      "vfmadd231ps 480(%[a])%{1to16%}, %%zmm0, %%zmm25\n"
      "addq $4, %[a]\n"
      "decq %[n0]\n"
      "jne .Ltile%=_0\n"
      ".Ltile%=_end:\n"
      "vmovups %%zmm31, 0(%[out])\n"
      "vmovups %%zmm30, 96(%[out])\n"
      "vmovups %%zmm29, 192(%[out])\n"
      "vmovups %%zmm28, 288(%[out])\n"
      "vmovups %%zmm27, 384(%[out])\n"
      "vmovups %%zmm26, 480(%[out])\n"
      "vmovups %%zmm25, 576(%[out])\n"
      : [a]"+&r"(a), [b]"+&r"(b), [n0]"=&r"(n0) : [out]"r"(out) : "cc", "memory", "xmm0", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
  }
  {
    const f32 *a = pin0_0 + 0LL, *b = pin1_1 + 16LL;
    f32 *out = ttile_4 + 16LL;
    i64 n0;
    __asm__ volatile(
      "vpxord %%ymm31, %%ymm31, %%ymm31\n"
      "vmovaps %%ymm31, %%ymm30\n"
      "vmovaps %%ymm31, %%ymm29\n"
      "vmovaps %%ymm31, %%ymm28\n"
      "vmovaps %%ymm31, %%ymm27\n"
      "vmovaps %%ymm31, %%ymm26\n"
      "vmovaps %%ymm31, %%ymm25\n"
      "movl $20, %k[n0]\n"
      ".p2align 6\n"
      ".Ltile%=_0:\n"
      "vmovups 0(%[b]), %%ymm0\n"
      "addq $96, %[b]\n"
      "vfmadd231ps 0(%[a])%{1to8%}, %%ymm0, %%ymm31\n"
      "vfmadd231ps 80(%[a])%{1to8%}, %%ymm0, %%ymm30\n"
      "vfmadd231ps 160(%[a])%{1to8%}, %%ymm0, %%ymm29\n"
      "vfmadd231ps 240(%[a])%{1to8%}, %%ymm0, %%ymm28\n"
      "vfmadd231ps 320(%[a])%{1to8%}, %%ymm0, %%ymm27\n"
      "vfmadd231ps 400(%[a])%{1to8%}, %%ymm0, %%ymm26\n"
      "vfmadd231ps 480(%[a])%{1to8%}, %%ymm0, %%ymm25\n"
      "addq $4, %[a]\n"
      "decq %[n0]\n"
      "jne .Ltile%=_0\n"
      ".Ltile%=_end:\n"
      "vmovups %%ymm31, 0(%[out])\n"
      "vmovups %%ymm30, 96(%[out])\n"
      "vmovups %%ymm29, 192(%[out])\n"
      "vmovups %%ymm28, 288(%[out])\n"
      "vmovups %%ymm27, 384(%[out])\n"
      "vmovups %%ymm26, 480(%[out])\n"
      "vmovups %%ymm25, 576(%[out])\n"
      : [a]"+&r"(a), [b]"+&r"(b), [n0]"=&r"(n0) : [out]"r"(out) : "cc", "memory", "xmm0", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
  }
  for (i64 row_5 = 0; row_5 < 7LL; row_5++) {
    const f32x16 mm_6 = tm_load_f32x16(ttile_4 + (row_5 * 24LL));
    const f32x16 in2_7 = tm_load_f32x16(pin2_2 + 0LL);
    const f32x16 add_8 = (mm_6 + in2_7);
    const f32x16 relu_9 = tm_atleast_f32x16(add_8, tm_splat_f32x16(0.0f));
    tm_store_f32x16(pout0_3 + (row_5 * 24LL), relu_9);
    const f32x8 mm_10 = tm_load_f32x8(ttile_4 + ((row_5 * 24LL) + 16LL));
    const f32x8 in2_11 = tm_load_f32x8(pin2_2 + 16LL);
    const f32x8 add_12 = (mm_10 + in2_11);
    const f32x8 relu_13 = tm_atleast_f32x8(add_12, tm_splat_f32x8(0.0f));
    tm_store_f32x8(pout0_3 + ((row_5 * 24LL) + 16LL), relu_13);
  }
}
