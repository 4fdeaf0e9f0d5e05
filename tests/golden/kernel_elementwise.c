/* cpu.pointwise(3x40, lanes=16) */
void tm_elementwise(const f32 *restrict pin0_0, const f32 *restrict pin1_1, f32 *restrict pout0_2)
{
  for (i64 task_3 = 0; task_3 < 3LL; task_3++) {
    for (i64 v_4 = 0; v_4 < 2LL; v_4++) {
      const f32x16 in0_5 = tm_load_f32x16(pin0_0 + ((task_3 * 40LL) + (v_4 * 16LL)));
      const f32x16 relu_6 = tm_atleast_f32x16(in0_5, tm_splat_f32x16(0.0f));
      const f32x16 in1_7 = tm_load_f32x16(pin1_1 + (v_4 * 16LL));
      const f32x16 add_8 = (relu_6 + in1_7);
      tm_store_f32x16(pout0_2 + ((task_3 * 40LL) + (v_4 * 16LL)), add_8);
    }
    const f32x8 in0_9 = tm_load_f32x8(pin0_0 + ((task_3 * 40LL) + 32LL));
    const f32x8 relu_10 = tm_atleast_f32x8(in0_9, tm_splat_f32x8(0.0f));
    const f32x8 in1_11 = tm_load_f32x8(pin1_1 + 32LL);
    const f32x8 add_12 = (relu_10 + in1_11);
    tm_store_f32x8(pout0_2 + ((task_3 * 40LL) + 32LL), add_12);
  }
}
