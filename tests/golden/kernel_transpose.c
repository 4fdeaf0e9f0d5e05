/* cpu.transpose(80x64, tile=32x32, lanes=16) */
void tm_transpose(const f32 *restrict pin0_0, f32 *restrict pout0_1)
{
  for (i64 task_2 = 0; task_2 < 6LL; task_2++) {
    f32 tx0local_3[1024] __attribute__((aligned(64)));
    for (i64 i_4 = 0; i_4 < 32LL; i_4++) {
      for (i64 j_5 = 0; j_5 < (tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL); j_5++) {
        tm_store_f32x16(tx0local_3 + ((i_4 * 32LL) + (j_5 * 16LL)), tm_load_f32x16(pin0_0 + ((((i_4 * 80LL) + (j_5 * 16LL)) + ((task_2 / 3LL) * 2560LL)) + ((task_2 % 3LL) * 32LL))));
      }
      for (i64 jtail_6 = 0; jtail_6 < (((tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL) * (-16LL)) + tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL)); jtail_6++) {
        tx0local_3[(((i_4 * 32LL) + jtail_6) + ((tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL) * 16LL))] = pin0_0[(((((i_4 * 80LL) + jtail_6) + ((tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL) / 16LL) * 16LL)) + ((task_2 / 3LL) * 2560LL)) + ((task_2 % 3LL) * 32LL))];
      }
    }
    for (i64 j_7 = 0; j_7 < tm_min_i64x1((((task_2 % 3LL) * (-32LL)) + 80LL), 32LL); j_7++) {
      for (i64 i_8 = 0; i_8 < 2LL; i_8++) {
        const f32x16 in0_9 = tm_load_strided_f32x16(tx0local_3 + (j_7 + (i_8 * 512LL)), 32LL);
        tm_store_f32x16(pout0_1 + ((((j_7 * 64LL) + (i_8 * 16LL)) + ((task_2 / 3LL) * 32LL)) + ((task_2 % 3LL) * 2048LL)), in0_9);
      }
    }
  }
}
