/* cpu.pointwise(n, lanes=16) */
static __attribute__((noinline)) void tm_mixed_loop0(const bf16 *restrict px_0, const i64 *restrict pat_1, const b8 *restrict pkeep_2, bf16 *restrict py_3, i8 *restrict pz_4, int *error, const i64 first, const i64 end)
{
  for (i64 v_6 = first; v_6 < end; v_6++) {
    const m8x16 keep_7 = tm_mask_b8x16_to_m8x16(tm_load_b8x16(pkeep_2 + (v_6 * 16LL)));
    const i64x16 at_8 = tm_load_i64x16(pat_1 + (v_6 * 16LL));
    const bf16x16 x_9 = tm_gather_bf16_i64x16(px_0, tm_checked_index_i64x16(at_8, tm_splat_i64x16(50LL), error));
    const bf16x16 where_10 = tm_select_bf16x16(tm_mask_m8x16_to_m16x16(keep_7), x_9, tm_splat_bf16x16(0x3fc0));
    tm_store_bf16x16(py_3 + (v_6 * 16LL), where_10);
    const i8x16 choose_11 = tm_select_i8x16(tm_mask_m32x16_to_m8x16(((m32x16)(tm_cast_bf16x16_to_f32x16(where_10) < tm_splat_f32x16(0.5f)))), tm_neg_i8x16(tm_cast_i64x16_to_i8x16(at_8)), tm_add_i8x16(tm_cast_i64x16_to_i8x16(at_8), tm_cast_i64x16_to_i8x16(at_8)));
    tm_store_i8x16(pz_4 + (v_6 * 16LL), choose_11);
  }
}
struct tm_mixed_loop0_data { const bf16 *restrict px_0; const i64 *restrict pat_1; const b8 *restrict pkeep_2; bf16 *restrict py_3; i8 *restrict pz_4; int *error; };
static void tm_mixed_loop0_range(const void *data, i64 first, i64 end)
{
  const struct tm_mixed_loop0_data *s = data;
  tm_mixed_loop0(s->px_0, s->pat_1, s->pkeep_2, s->py_3, s->pz_4, s->error, first, end);
}
void tm_mixed(const bf16 *restrict px_0, const i64 *restrict pat_1, const b8 *restrict pkeep_2, bf16 *restrict py_3, i8 *restrict pz_4, const i64 dn_5, int *error)
{
  const struct tm_mixed_loop0_data s0 = {px_0, pat_1, pkeep_2, py_3, pz_4, error};
  if ((20000LL <= (dn_5 * 12LL))) tm_parallel_1(tm_mixed_loop0_range, &s0, (dn_5 / 16LL));
  else tm_mixed_loop0_range(&s0, 0, (dn_5 / 16LL));
  for (i64 vtail_12 = 0; vtail_12 < (dn_5 - ((dn_5 / 16LL) * 16LL)); vtail_12++) {
    const int keep_13 = pkeep_2[(vtail_12 + ((dn_5 / 16LL) * 16LL))];
    const i64 at_14 = pat_1[(vtail_12 + ((dn_5 / 16LL) * 16LL))];
    const bf16 x_15 = px_0[({ i64 i = at_14; const i64 n = 50LL; if (i < 0) i += n; if (i < 0 || i >= n) { *error = 1; i = 0; } i; })];
    const bf16 where_16 = (keep_13 ? x_15 : 0x3fc0);
    py_3[(vtail_12 + ((dn_5 / 16LL) * 16LL))] = where_16;
    const i8 choose_17 = ((tm_cast_bf16x1_to_f32x1(where_16) < 0.5f) ? tm_neg_i8x1(tm_cast_i64x1_to_i8x1(at_14)) : tm_add_i8x1(tm_cast_i64x1_to_i8x1(at_14), tm_cast_i64x1_to_i8x1(at_14)));
    pz_4[(vtail_12 + ((dn_5 / 16LL) * 16LL))] = choose_17;
  }
}
