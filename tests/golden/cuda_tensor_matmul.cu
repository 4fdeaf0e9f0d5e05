// tensor_matmul, for sm_80
// tile_a: f16[32, 32] lies as row_major(32, 32).swizzled(2, 3, 3)
// tile_b: f16[32, 32] lies as row_major(32, 32).swizzled(2, 3, 3)
// acc: f32[32, 32] is held by spatial(2, 1) * repeat(1, 4) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
// 4096 bytes of shared memory
extern "C" __global__ void __launch_bounds__(64) tm_tensor_matmul_371c9775(
    tm_global<const tm_f16> a,
    tm_global<const tm_f16> b,
    tm_global<float> c)
{
  const int block_x = blockIdx.x;
  const int block_y = blockIdx.y;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  tm_shared<tm_f16> tile_a = tm_shared_at<tm_f16>(0, 1024);  // cuda_kernels.py:75
  tm_shared<tm_f16> tile_b = tm_shared_at<tm_f16>(2048, 1024);  // cuda_kernels.py:76
  float acc[16];  // cuda_kernels.py:77
  #pragma unroll
  for (int r2 = 0; r2 < 16; r2++) {
    acc[r2] = 0.0f;
  }
  const int row = block_x * 32;  // cuda_kernels.py:78
  const int col = block_y * 32;
  for (int step = 0; step < 2; step++) {  // cuda_kernels.py:79
    #pragma unroll
    for (int r0 = 0; r0 < 2; r0++) {  // cuda_kernels.py:81
      const int i0 = r0 * 16 + thread / 4;
      const int i1 = thread % 4;
      tm_cp_async_16(tile_a + r0 * 512 + ((thread * 8) ^ (thread / 8 % 4 * 8)), a + (row + i0) * 64 + step * 32 + i1 * 8);
    }
    #pragma unroll
    for (int r0 = 0; r0 < 2; r0++) {  // cuda_kernels.py:82
      const int i0 = r0 * 16 + thread / 4;
      const int i1 = thread % 4;
      tm_store(tile_b + r0 * 512 + ((thread * 8) ^ (thread / 8 % 4 * 8)), tm_load<8>(b + step * 2048 + i0 * 64 + i1 * 8 + col));
    }
    tm_cp_async_commit();  // cuda_kernels.py:83
    tm_cp_async_wait<0>();  // cuda_kernels.py:84
    tm_barrier();  // cuda_kernels.py:85
    const int warp = thread / 32;  // cuda_kernels.py:86
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      alignas(4) tm_f16 fragment[8];
      tm_ldmatrix_x4(fragment, tile_a + warp * 512 + lane / 8 % 2 * 256 + thread % 8 * 32 + ((k * 16 + lane / 16 * 8) ^ (thread % 8 / 2 * 8)));
      alignas(4) tm_f16 fragment_1[16];
      #pragma unroll
      for (int t = 0; t < 2; t++) {
        tm_ldmatrix_x4_trans(fragment_1 + t * 8, tile_b + k * 512 + lane / 8 % 2 * 256 + thread % 8 * 32 + ((t * 16 + lane / 16 * 8) ^ (thread % 8 / 2 * 8)));
      }
      #pragma unroll
      for (int n = 0; n < 4; n++) {
        tm_mma_m16n8k16_f16_f32(acc + n * 4, fragment, fragment_1 + n * 4);
      }
    }
    tm_barrier();  // cuda_kernels.py:87
  }
  #pragma unroll
  for (int r0 = 0; r0 < 4; r0++) {  // cuda_kernels.py:88
    #pragma unroll
    for (int r1 = 0; r1 < 2; r1++) {
      const int i0 = thread / 32 * 16 + r1 * 8 + thread / 4 % 8;
      const int i1 = r0 * 4 + thread % 4;
      tm_store(c + (row + i0) * 64 + i1 * 2 + col, tm_get<2>(acc + r0 * 4 + r1 * 2));
    }
  }
}
