// scale, for sm_80
extern "C" __global__ void __launch_bounds__(128) tm_scale_9395fb1b(tm_global<const float> x, tm_global<float> z)
{
  const int block_x = blockIdx.x;
  const int thread = threadIdx.x;
  const int i = block_x * 512 + thread * 4;  // cuda_kernels.py:49
  tm_store(z + i, tm_load<4>(x + i) * tm_splat<4>(2.0f));  // cuda_kernels.py:51
}
