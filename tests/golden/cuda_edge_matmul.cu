// edge_matmul, for sm_80
// tile_a: f16[2, 32, 32] lies as row_major(2, 32, 32).swizzled(2, 3, 3)
// tile_b: f16[2, 32, 32] lies as row_major(2, 32, 32).swizzled(2, 3, 3)
// acc: f32[32, 32] is held by spatial(2, 1) * repeat(1, 4) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
// i, j in repeat(2, 1) * spatial(16, 4)  (cuda_kernels.py:100)
// left_tile: f16[16, 16] is held by repeat(2, 2, order=(1, 0)) * spatial(8, 4) * repeat(1, 2)
// right_tile: f16[16, 8] is held by repeat(2, 1) * spatial(4, 8, order=(1, 0)) * repeat(2, 1)
// 8192 bytes of shared memory
extern "C" __global__ void __launch_bounds__(64) tm_edge_matmul_d7871f16(
    tm_global<const tm_f16> a,
    tm_global<const tm_f16> b,
    tm_global<tm_f16> c,
    long long m,
    long long k,
    long long n)
{
  const int block_x = blockIdx.x;
  const int block_y = blockIdx.y;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  tm_shared<tm_f16> tile_a = tm_shared_at<tm_f16>(0, 2048);  // cuda_kernels.py:94
  tm_shared<tm_f16> tile_b = tm_shared_at<tm_f16>(4096, 2048);  // cuda_kernels.py:95
  float acc[16];  // cuda_kernels.py:96
  #pragma unroll
  for (int r2 = 0; r2 < 16; r2++) {
    acc[r2] = 0.0f;
  }
  const long long row = (long long)block_x * 32;  // cuda_kernels.py:97
  const long long col = (long long)block_y * 32;
  const int warp = thread / 32;
  for (long long step = 0; step < (k + 31) / 32; step++) {  // cuda_kernels.py:98
    const int stage = step % 2;  // cuda_kernels.py:99
    #pragma unroll
    for (int r0 = 0; r0 < 2; r0++) {  // cuda_kernels.py:100
      const int i = r0 * 16 + thread / 4;
      const int j = thread % 4;
      const int left = row + i < m ? tm_max<long long>(tm_min<long long>(k - step * 32 - j * 8, 8), 0) : 0LL;  // cuda_kernels.py:101
      const int below = step * 32 + i < k ? tm_max<long long>(tm_min<long long>(n - j * 8 - col, 8), 0) : 0LL;  // cuda_kernels.py:102
      tm_cp_async_zfill_16(tile_a + stage * 1024 + r0 * 512 + ((thread * 8) ^ (thread / 8 % 4 * 8)), a + k * tm_min<long long>(row + i, m - 1) + tm_min<long long>(step * 32 + j * 8, k - 8), left * 2);  // cuda_kernels.py:105
      tm_cp_async_zfill_16(tile_b + stage * 1024 + r0 * 512 + ((thread * 8) ^ (thread / 8 % 4 * 8)), b + n * tm_min<long long>(step * 32 + i, k - 1) + tm_min<long long>(j * 8 + col, n - 8), below * 2);  // cuda_kernels.py:106
    }
    tm_cp_async_commit();  // cuda_kernels.py:107
    tm_cp_async_wait<0>();  // cuda_kernels.py:108
    tm_barrier();  // cuda_kernels.py:109
    #pragma unroll
    for (int kk = 0; kk < 2; kk++) {  // cuda_kernels.py:110
      alignas(4) tm_f16 left_tile[8];  // cuda_kernels.py:111
      tm_ldmatrix_x4(left_tile, tile_a + stage * 1024 + warp * 512 + lane / 8 % 2 * 256 + thread % 8 * 32 + ((kk * 16 + lane / 16 * 8) ^ (thread % 8 / 2 * 8)));  // cuda_kernels.py:112
      #pragma unroll
      for (int j = 0; j < 4; j++) {  // cuda_kernels.py:113
        alignas(4) tm_f16 right_tile[4];  // cuda_kernels.py:114
        tm_ldmatrix_x2_trans(right_tile, tile_b + stage * 1024 + kk * 512 + lane / 8 % 2 * 256 + thread % 8 * 32 + ((j * 8) ^ (thread % 8 / 2 * 8)));  // cuda_kernels.py:115
        tm_mma_m16n8k16_f16_f32(acc + j * 4, left_tile, right_tile);  // cuda_kernels.py:116
      }
    }
    tm_barrier();  // cuda_kernels.py:117
  }
  #pragma unroll
  for (int r0 = 0; r0 < 4; r0++) {  // cuda_kernels.py:118
    #pragma unroll
    for (int r1 = 0; r1 < 2; r1++) {
      #pragma unroll
      for (int r2 = 0; r2 < 2; r2++) {
        const int i = warp * 16 + r1 * 8 + thread / 4 % 8;
        const int j = r0 * 8 + thread % 4 * 2 + r2;
        if (row + i < m && col + j < n) c[(row + i) * n + col + j] = tm_cast<tm_f16>(acc[r0 * 4 + r1 * 2 + r2]);  // cuda_kernels.py:119
      }
    }
  }
}
