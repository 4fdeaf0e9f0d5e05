// row_sum, for sm_80
extern "C" __global__ void __launch_bounds__(32) tm_row_sum_7692ea34(tm_global<const float> x, tm_global<float> y, long long m)
{
  const int block_x = blockIdx.x;
  const int thread = threadIdx.x;
  float total[1];  // cuda_kernels.py:125
  total[0] = 0.0f;
  for (int j = 0; j < 4; j++) {  // cuda_kernels.py:126
    total[0] = total[0] + (j * 32 + thread < 100 ? x[(long long)block_x * 100 + j * 32 + thread] : 0.0f);  // cuda_kernels.py:127
  }
  total[0] = total[0] + tm_shuffle_xor<32>(total[0], 16);  // cuda_kernels.py:129
  total[0] = total[0] + tm_shuffle_xor<32>(total[0], 8);
  total[0] = total[0] + tm_shuffle_xor<32>(total[0], 4);
  total[0] = total[0] + tm_shuffle_xor<32>(total[0], 2);
  total[0] = total[0] + tm_shuffle_xor<32>(total[0], 1);
  if (thread == 0) y[block_x] = total[0];  // cuda_kernels.py:131
}
