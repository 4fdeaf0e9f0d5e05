// pick, for sm_80
extern "C" __global__ void __launch_bounds__(32) tm_pick_33398ae1(
    tm_global<const float> x,
    tm_global<const long long> at,
    tm_global<float> y,
    long long m,
    long long n,
    tm_global<int> error)
{
  const int block_x = blockIdx.x;
  const int thread = threadIdx.x;
  const long long i = (long long)block_x * 32 + thread;  // cuda_kernels.py:137
  if (i < n) y[i] = tm_checked_index(at[i], m, error) < m ? x[tm_checked_index(at[i], m, error)] : 0.0f;  // cuda_kernels.py:139
}
