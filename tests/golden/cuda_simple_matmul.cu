// simple_matmul, for sm_80
// acc: f32[8, 8] is held by spatial(8, 4) * repeat(1, 2)
// i, j in repeat(2, 1) * spatial(4, 8)  (cuda_kernels.py:60)
// 512 bytes of shared memory
extern "C" __global__ void __launch_bounds__(32) tm_simple_matmul_ff74409f(
    tm_global<const float> a,
    tm_global<const float> b,
    tm_global<float> c,
    long long m,
    long long k,
    long long n)
{
  const int block_x = blockIdx.x;
  const int block_y = blockIdx.y;
  const int thread = threadIdx.x;
  tm_shared<float> tile_a = tm_shared_at<float>(0, 64);  // cuda_kernels.py:56
  tm_shared<float> tile_b = tm_shared_at<float>(256, 64);
  float acc[2];  // cuda_kernels.py:57
  #pragma unroll
  for (int r0 = 0; r0 < 2; r0++) {
    acc[r0] = 0.0f;
  }
  const long long row = (long long)block_x * 8;  // cuda_kernels.py:58
  const long long col = (long long)block_y * 8;
  for (long long step = 0; step < (k + 7) / 8; step++) {  // cuda_kernels.py:59
    #pragma unroll
    for (int r0 = 0; r0 < 2; r0++) {  // cuda_kernels.py:60
      const int i = r0 * 4 + thread / 8;
      const int j = thread % 8;
      tile_a[r0 * 32 + thread] = row + i < m && step * 8 + j < k ? a[k * (row + i) + step * 8 + j] : 0.0f;  // cuda_kernels.py:61
      tile_b[r0 * 32 + thread] = step * 8 + i < k && col + j < n ? b[n * (step * 8 + i) + col + j] : 0.0f;  // cuda_kernels.py:62
    }
    tm_barrier();  // cuda_kernels.py:63
    for (int kk = 0; kk < 8; kk++) {  // cuda_kernels.py:64
      #pragma unroll
      for (int r0 = 0; r0 < 2; r0++) {  // cuda_kernels.py:65
        const int i = thread / 4;
        const int j = thread % 4 * 2 + r0;
        acc[r0] = acc[r0] + tile_a[i * 8 + kk] * tile_b[kk * 8 + j];  // cuda_kernels.py:66
      }
    }
    tm_barrier();  // cuda_kernels.py:67
  }
  #pragma unroll
  for (int r0 = 0; r0 < 2; r0++) {  // cuda_kernels.py:68
    const int i = thread / 4;
    const int j = thread % 4 * 2 + r0;
    if (row + i < m && col + j < n) c[(row + i) * n + col + j] = acc[r0];  // cuda_kernels.py:69
  }
}
