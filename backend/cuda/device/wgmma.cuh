// What surrounds the products of a warpgroup; the products themselves are made shape by shape. PTX ISA, "wgmma".

// Registers that wgmma is to read, or to add to, have been written.
TM_FN void tm_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TM_FN void tm_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most Pending of the latest groups are unfinished.
template <int Pending> TM_FN void tm_wgmma_wait()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// The compiler, which does not know that wgmma is asynchronous, moves no access to the slots across.
template <int Slots> TM_FN void tm_wgmma_hold(float *d)
{
#pragma unroll
  for (int i = 0; i < Slots; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int Slots, class T> TM_FN void tm_wgmma_hold(T *d)
{
  constexpr int words = Slots * sizeof(T) / 4;
#pragma unroll
  for (int i = 0; i < words; i++) asm volatile("" : "+r"(reinterpret_cast<unsigned *>(d)[i])::"memory");
}

// Where a matrix lies in shared memory: start, offsets in bytes, and over how many bytes it is swizzled. PTX ISA, "Matrix
// Descriptor Format".
template <int Swizzle, class T> TM_FN long long tm_wgmma_descriptor(T *matrix, int leading, int stride)
{
  constexpr unsigned long long mode = Swizzle == 128 ? 1 : Swizzle == 64 ? 2 : Swizzle == 32 ? 3 : 0;
  static_assert(Swizzle == 0 || mode != 0, "a swizzle is of 0, 32, 64 or 128 bytes");
  unsigned long long start = (tm_shared_address(matrix) & 0x3ffffu) >> 4;
  unsigned long long across = (leading & 0x3ffff) >> 4, down = (stride & 0x3ffff) >> 4;
  return static_cast<long long>(start | across << 16 | down << 32 | mode << 62);
}
