// What every kernel may use: types, pointers, memory accesses, the barrier. CUDA C++ without headers, for NVRTC and nvcc.
// The simulator has a file of the same contents for the host; portable.cuh, which follows, serves both.

#define TM_FN __device__ __forceinline__

// Memory. A pointer parameter is the only way to its buffer, or the buffer is read only.
template <class T> using tm_global = T *__restrict__;
template <class T> using tm_shared = T *;

extern __shared__ __align__(1024) unsigned char tm_smem[];

// The part of the block's shared memory that begins at a byte offset; how many elements it has matters to the
// simulator, which checks accesses.
template <class T> TM_FN T *tm_shared_at(int offset, int = 0) { return reinterpret_cast<T *>(tm_smem + offset); }

// Addresses within their memory, as instructions take them.
TM_FN unsigned tm_shared_address(const void *p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
TM_FN unsigned long long tm_global_address(const void *p) { return __cvta_generic_to_global(p); }

TM_FN void tm_barrier() { __syncthreads(); }

// A grid whose blocks may start while the grid before it ends: they wait here until that one has ended and its results
// are seen. Then the blocks of the grid after this one may start. PTX ISA, "griddepcontrol".
TM_FN void tm_after_previous_grid()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// 16-bit floats are stored as such and computed in float; NVRTC has no built-in type for them.
struct tm_f16 {
  unsigned short bits;
  tm_f16() = default;
  TM_FN explicit tm_f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
};

struct tm_bf16 {
  unsigned short bits;
  tm_bf16() = default;
  TM_FN explicit tm_bf16(float x)
  {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    unsigned u = __float_as_uint(x);
    bits = x != x ? 0x7fc0 : static_cast<unsigned short>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#endif
  }
};

TM_FN float tm_value(tm_f16 x)
{
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
TM_FN float tm_value(tm_bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

// 8-bit floats: portable.cuh converts them.
struct tm_e4m3 { unsigned char bits; };
struct tm_e5m2 { unsigned char bits; };

TM_FN float tm_inf() { return __uint_as_float(0x7f800000u); }
TM_FN float tm_nan() { return __uint_as_float(0x7fc00000u); }

// A vector of N elements in registers.
template <class T, int N> struct tm_vec {
  T lane[N];
  TM_FN T &operator[](int i) { return lane[i]; }
  TM_FN const T &operator[](int i) const { return lane[i]; }
};

// What one load or store instruction moves.
template <int Bytes> struct tm_word;
template <> struct tm_word<1> { using type = unsigned char; };
template <> struct tm_word<2> { using type = unsigned short; };
template <> struct tm_word<4> { using type = unsigned; };
template <> struct tm_word<8> { using type = uint2; };
template <> struct tm_word<16> { using type = uint4; };

template <class T> struct tm_plain { using type = T; };
template <class T> struct tm_plain<const T> { using type = T; };

template <class T, int N, int Aligned> union tm_words {
  using word = typename tm_word<(Aligned * sizeof(T) < 16 ? Aligned * sizeof(T) : 16)>::type;
  static constexpr int count = N * sizeof(T) / sizeof(word);
  tm_vec<T, N> vector;
  word words[count];
};

// N neighbours, whose address is a multiple of Aligned elements.
template <int N, int Aligned = N, class T> TM_FN tm_vec<typename tm_plain<T>::type, N> tm_load(T *p)
{
  using words = tm_words<typename tm_plain<T>::type, N, Aligned>;
  words u;
#pragma unroll
  for (int i = 0; i < words::count; i++) u.words[i] = reinterpret_cast<const typename words::word *>(p)[i];
  return u.vector;
}

template <int Aligned, class T, int N> TM_FN void tm_store_aligned(T *p, tm_vec<T, N> x)
{
  using words = tm_words<T, N, Aligned>;
  words u;
  u.vector = x;
#pragma unroll
  for (int i = 0; i < words::count; i++) reinterpret_cast<typename words::word *>(p)[i] = u.words[i];
}

template <class T, int N> TM_FN void tm_store(T *p, tm_vec<T, N> x) { tm_store_aligned<N>(p, x); }
