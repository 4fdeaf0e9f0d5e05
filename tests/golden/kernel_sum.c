/* cpu.rows(row=1x300000, passes=1, lanes=16) */
static __attribute__((noinline)) void tm_sum_loop0(const f32 *restrict pin0_0, f32 *restrict tpartssum_2, const i64 first, const i64 end)
{
  for (i64 part_3 = first; part_3 < end; part_3++) {
    f32x16 rsum16_4_0;
    rsum16_4_0 = tm_splat_f32x16(0.0f);
    f32x16 rsum16_5_0;
    rsum16_5_0 = tm_splat_f32x16(0.0f);
    f32x16 rsum16_6_0;
    rsum16_6_0 = tm_splat_f32x16(0.0f);
    f32x16 rsum16_7_0;
    rsum16_7_0 = tm_splat_f32x16(0.0f);
    f32 rsum1_8_0;
    rsum1_8_0 = 0.0f;
    for (i64 t_9 = 0; t_9 < (tm_min_i64x1(((part_3 * (-16704LL)) + 300000LL), 16704LL) / 64LL); t_9++) {
      const f32x16 in0_10 = tm_load_f32x16(pin0_0 + ((part_3 * 16704LL) + (t_9 * 64LL)));
      rsum16_4_0 = (rsum16_4_0 + in0_10);
      const f32x16 in0_11 = tm_load_f32x16(pin0_0 + (((part_3 * 16704LL) + (t_9 * 64LL)) + 16LL));
      rsum16_5_0 = (rsum16_5_0 + in0_11);
      const f32x16 in0_12 = tm_load_f32x16(pin0_0 + (((part_3 * 16704LL) + (t_9 * 64LL)) + 32LL));
      rsum16_6_0 = (rsum16_6_0 + in0_12);
      const f32x16 in0_13 = tm_load_f32x16(pin0_0 + (((part_3 * 16704LL) + (t_9 * 64LL)) + 48LL));
      rsum16_7_0 = (rsum16_7_0 + in0_13);
    }
    for (i64 t_14 = 0; t_14 < ((tm_min_i64x1(((part_3 * (-16704LL)) + 300000LL), 16704LL) / 16LL) - ((tm_min_i64x1(((part_3 * (-16704LL)) + 300000LL), 16704LL) / 64LL) * 4LL)); t_14++) {
      const f32x16 in0_15 = tm_load_f32x16(pin0_0 + (((part_3 * 16704LL) + (t_14 * 16LL)) + ((tm_min_i64x1(((part_3 * (-16704LL)) + 300000LL), 16704LL) / 64LL) * 64LL)));
      rsum16_4_0 = (rsum16_4_0 + in0_15);
    }
    for (i64 ttail_16 = 0; ttail_16 < (((tm_min_i64x1(((part_3 * (-16704LL)) + 300000LL), 16704LL) / 16LL) * (-16LL)) + tm_min_i64x1(((part_3 * (-16704LL)) + 300000LL), 16704LL)); ttail_16++) {
      const f32 in0_17 = pin0_0[(((part_3 * 16704LL) + ttail_16) + ((tm_min_i64x1(((part_3 * (-16704LL)) + 300000LL), 16704LL) / 16LL) * 16LL))];
      rsum1_8_0 = (rsum1_8_0 + in0_17);
    }
    const f32 sum_18 = (tm_hsum_f32x16((((rsum16_4_0 + rsum16_5_0) + rsum16_6_0) + rsum16_7_0)) + rsum1_8_0);
    tpartssum_2[part_3] = sum_18;
  }
}
struct tm_sum_loop0_data { const f32 *restrict pin0_0; f32 *restrict tpartssum_2; };
static void tm_sum_loop0_range(const void *data, i64 first, i64 end)
{
  const struct tm_sum_loop0_data *s = data;
  tm_sum_loop0(s->pin0_0, s->tpartssum_2, first, end);
}
void tm_sum(const f32 *restrict pin0_0, f32 *restrict pout0_1)
{
  f32 tpartssum_2[18] __attribute__((aligned(64)));
  const struct tm_sum_loop0_data s0 = {pin0_0, tpartssum_2};
  tm_parallel_1(tm_sum_loop0_range, &s0, 18LL);
  f64 rsum_19_0;
  rsum_19_0 = 0.0;
  for (i64 part_20 = 0; part_20 < 18LL; part_20++) {
    rsum_19_0 = (rsum_19_0 + tm_cast_f32x1_to_f64x1(tpartssum_2[part_20]));
  }
  const f32 sum_21 = tm_cast_f64x1_to_f32x1(rsum_19_0);
  pout0_1[0LL] = sum_21;
}
