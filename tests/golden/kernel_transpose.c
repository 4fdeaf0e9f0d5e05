/* cpu.transpose(80x64, tile=32x32, lanes=16) */
void tm_transpose(const f32 *restrict pin0_0, f32 *restrict pout0_1)
{
  for (i64 task_2 = 0; task_2 < 6LL; task_2++) {
    f32 ttile_3[1024] __attribute__((aligned(64)));
    for (i64 fill_4 = 0; fill_4 < 32LL; fill_4++) {
      for (i64 fillv_5 = 0; fillv_5 < (tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL); fillv_5++) {
        tm_store_f32x16(ttile_3 + ((fill_4 * 32LL) + (fillv_5 * 16LL)), tm_load_f32x16(pin0_0 + ((((fill_4 * 80LL) + (fillv_5 * 16LL)) + ((task_2 / 3LL) * 2560LL)) + ((task_2 % 3LL) * 32LL))));
      }
      for (i64 fillvtail_6 = 0; fillvtail_6 < (((tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL) * (-16LL)) + tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL)); fillvtail_6++) {
        ttile_3[(((fill_4 * 32LL) + fillvtail_6) + ((tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL) * 16LL))] = pin0_0[(((((fill_4 * 80LL) + fillvtail_6) + ((tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL) * 16LL)) + ((task_2 / 3LL) * 2560LL)) + ((task_2 % 3LL) * 32LL))];
      }
    }
    for (i64 column_7 = 0; column_7 < tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL); column_7++) {
      for (i64 v_8 = 0; v_8 < 2LL; v_8++) {
        const f32x16 in0_9 = tm_load_strided_f32x16(ttile_3 + (column_7 + (v_8 * 512LL)), 32LL);
        tm_store_f32x16(pout0_1 + ((((column_7 * 64LL) + (v_8 * 16LL)) + ((task_2 / 3LL) * 32LL)) + ((task_2 % 3LL) * 2048LL)), in0_9);
      }
    }
  }
}
