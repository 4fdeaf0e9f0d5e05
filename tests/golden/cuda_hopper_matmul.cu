// hopper_matmul, for sm_90a
// tile_a: f16[2, 64, 64] lies as row_major(2, 64, 64).swizzled(3, 3, 3)
// tile_b: f16[2, 64, 64] lies as row_major(2, 64, 64).swizzled(3, 3, 3)
// acc: f32[64, 64] is held by repeat(1, 8) * spatial(4, 1) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
// 32784 bytes of shared memory
extern "C" __global__ void __launch_bounds__(128) tm_hopper_matmul_08638ddd(
    tm_global<const tm_f16> a,
    tm_global<const tm_f16> b,
    tm_global<float> c,
    long long m,
    long long k,
    long long n,
    const __grid_constant__ tm_tensor_map map_a,
    const __grid_constant__ tm_tensor_map map_b)
{
  const int block_x = blockIdx.x;
  const int block_y = blockIdx.y;
  const int thread = threadIdx.x;
  tm_shared<tm_f16> tile_a = tm_shared_at<tm_f16>(0, 8192);  // cuda_kernels.py:158
  tm_shared<tm_f16> tile_b = tm_shared_at<tm_f16>(16384, 8192);
  tm_shared<long long> full = tm_shared_at<long long>(32768, 2);  // cuda_kernels.py:159
  float acc[32];  // cuda_kernels.py:160
  #pragma unroll
  for (int r2 = 0; r2 < 32; r2++) {
    acc[r2] = 0.0f;
  }
  if (thread == 0) {  // cuda_kernels.py:161
    tm_mbarrier_init(full, 1);  // cuda_kernels.py:162
    tm_mbarrier_init(full + 1, 1);  // cuda_kernels.py:163
    tm_fence_mbarrier_init();  // cuda_kernels.py:164
  }
  tm_barrier();  // cuda_kernels.py:165
  for (long long step = 0; step < (k + 63) / 64; step++) {  // cuda_kernels.py:166
    const int stage = step % 2;  // cuda_kernels.py:167
    if (thread == 0) {  // cuda_kernels.py:168
      tm_mbarrier_arrive_expect_tx(full + stage, 16384);  // cuda_kernels.py:169
      tm_tma_load_2d(tile_a + stage * 4096, map_a, full + stage, tm_cast<int>(step * 64), tm_cast<int>((long long)block_x * 64));  // cuda_kernels.py:170
      tm_tma_load_2d(tile_b + stage * 4096, map_b, full + stage, tm_cast<int>(step * 64), tm_cast<int>((long long)block_y * 64));  // cuda_kernels.py:171
    }
    tm_mbarrier_wait(full + stage, tm_cast<int>(step / 2 % 2));  // cuda_kernels.py:172
    tm_wgmma_fence();  // cuda_kernels.py:173
    #pragma unroll
    for (int kk = 0; kk < 4; kk++) {  // cuda_kernels.py:174
      const long long left = tm_wgmma_descriptor<128>(tile_a + stage * 4096 + kk * 16, 16, 1024);  // cuda_kernels.py:175
      const long long right = tm_wgmma_descriptor<128>(tile_b + stage * 4096 + kk * 16, 16, 1024);  // cuda_kernels.py:176
      tm_wgmma_m64n64k16_f16_f32<0, 0>(acc, left, right, 1);  // cuda_kernels.py:177
    }
    tm_wgmma_commit();  // cuda_kernels.py:178
    tm_wgmma_wait<0>();  // cuda_kernels.py:179
    tm_barrier();  // cuda_kernels.py:180
  }
  #pragma unroll
  for (int r0 = 0; r0 < 8; r0++) {  // cuda_kernels.py:181
    #pragma unroll
    for (int r1 = 0; r1 < 2; r1++) {
      #pragma unroll
      for (int r2 = 0; r2 < 2; r2++) {
        const int i = thread / 32 * 16 + r1 * 8 + thread / 4 % 8;
        const int j = r0 * 8 + thread % 4 * 2 + r2;
        if ((long long)block_x * 64 + i < m && (long long)block_y * 64 + j < n) c[((long long)block_x * 64 + i) * n + (long long)block_y * 64 + j] = acc[r0 * 4 + r1 * 2 + r2];  // cuda_kernels.py:182
      }
    }
  }
}
