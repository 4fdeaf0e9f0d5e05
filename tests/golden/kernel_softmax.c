/* cpu.rows(row=40, passes=3, lanes=16) */
void tm_softmax(const f32 *restrict pin0_0, f32 *restrict pout0_1)
{
  for (i64 task_2 = 0; task_2 < 6LL; task_2++) {
    f32x16 rmax16_3_0;
    rmax16_3_0 = tm_splat_f32x16((-__builtin_inff()));
    f32x8 rmax8_4_0;
    rmax8_4_0 = tm_splat_f32x8((-__builtin_inff()));
    for (i64 t_5 = 0; t_5 < 2LL; t_5++) {
      const f32x16 in0_6 = tm_load_f32x16(pin0_0 + ((task_2 * 40LL) + (t_5 * 16LL)));
      rmax16_3_0 = tm_max_f32x16(rmax16_3_0, in0_6);
    }
    const f32x8 in0_7 = tm_load_f32x8(pin0_0 + ((task_2 * 40LL) + 32LL));
    rmax8_4_0 = tm_max_f32x8(rmax8_4_0, in0_7);
    const f32 max_8 = tm_max_f32x1(tm_hmax_f32x16(rmax16_3_0), tm_hmax_f32x8(rmax8_4_0));
    f32 trowexp_9[40] __attribute__((aligned(64)));
    f32x16 rsum16_10_0;
    rsum16_10_0 = tm_splat_f32x16(0.0f);
    f32x8 rsum8_11_0;
    rsum8_11_0 = tm_splat_f32x8(0.0f);
    for (i64 t_12 = 0; t_12 < 2LL; t_12++) {
      const f32x16 in0_13 = tm_load_f32x16(pin0_0 + ((task_2 * 40LL) + (t_12 * 16LL)));
      const f32x16 exp_14 = tm_exp_f32x16((in0_13 - tm_splat_f32x16(max_8)));
      tm_store_f32x16(trowexp_9 + (t_12 * 16LL), exp_14);
      rsum16_10_0 = (rsum16_10_0 + exp_14);
    }
    const f32x8 in0_15 = tm_load_f32x8(pin0_0 + ((task_2 * 40LL) + 32LL));
    const f32x8 exp_16 = tm_exp_f32x8((in0_15 - tm_splat_f32x8(max_8)));
    tm_store_f32x8(trowexp_9 + 32LL, exp_16);
    rsum8_11_0 = (rsum8_11_0 + exp_16);
    const f32 sum_17 = (tm_hsum_f32x16(rsum16_10_0) + tm_hsum_f32x8(rsum8_11_0));
    for (i64 t_18 = 0; t_18 < 2LL; t_18++) {
      const f32x16 exp_19 = tm_load_f32x16(trowexp_9 + (t_18 * 16LL));
      const f32x16 softmax_20 = (exp_19 / tm_splat_f32x16(sum_17));
      tm_store_f32x16(pout0_1 + ((task_2 * 40LL) + (t_18 * 16LL)), softmax_20);
    }
    const f32x8 exp_21 = tm_load_f32x8(trowexp_9 + 32LL);
    const f32x8 softmax_22 = (exp_21 / tm_splat_f32x8(sum_17));
    tm_store_f32x8(pout0_1 + ((task_2 * 40LL) + 32LL), softmax_22);
  }
}
