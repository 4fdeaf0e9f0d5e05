// Neighbours in global memory, 1, 2, 4, 8 or 16 bytes aligned to as many, loaded or stored with a word on caches. PTX ISA,
// "ld", "ld.global.nc", "st", "prefetch".

template <class T, int N> union tm_cached {
  static constexpr int bytes = N * sizeof(T);
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16, "no such access");
  tm_vec<T, N> vector;
  unsigned char byte;
  unsigned short half;
  unsigned word[bytes < 4 ? 1 : bytes / 4];
  __device__ tm_cached() {}
};

#define TM_LOAD_CACHED(name, how, ordered)                                                                            \
  template <int N, class T> TM_FN tm_vec<typename tm_plain<T>::type, N> tm_load_##name(T *memory)                     \
  {                                                                                                                   \
    using cached = tm_cached<typename tm_plain<T>::type, N>;                                                          \
    cached x;                                                                                                         \
    unsigned long long at = tm_global_address(memory);                                                                \
    if constexpr (cached::bytes == 1) {                                                                               \
      unsigned short y;                                                                                               \
      asm volatile("ld.global" how ".u8 %0, [%1];" : "=h"(y) : "l"(at) ordered);                                      \
      x.byte = static_cast<unsigned char>(y);                                                                         \
    } else if constexpr (cached::bytes == 2) {                                                                        \
      asm volatile("ld.global" how ".u16 %0, [%1];" : "=h"(x.half) : "l"(at) ordered);                                \
    } else if constexpr (cached::bytes == 4) {                                                                        \
      asm volatile("ld.global" how ".u32 %0, [%1];" : "=r"(x.word[0]) : "l"(at) ordered);                             \
    } else if constexpr (cached::bytes == 8) {                                                                        \
      asm volatile("ld.global" how ".v2.u32 {%0, %1}, [%2];" : "=r"(x.word[0]), "=r"(x.word[1]) : "l"(at) ordered);   \
    } else {                                                                                                          \
      asm volatile("ld.global" how ".v4.u32 {%0, %1, %2, %3}, [%4];"                                                  \
                   : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])                               \
                   : "l"(at) ordered);                                                                                \
    }                                                                                                                 \
    return x.vector;                                                                                                  \
  }
TM_LOAD_CACHED(nc, ".nc", )
TM_LOAD_CACHED(nc_no_allocate, ".nc.L1::no_allocate", )
TM_LOAD_CACHED(no_allocate, ".L1::no_allocate", : "memory")
TM_LOAD_CACHED(cs, ".cs", : "memory")
TM_LOAD_CACHED(cg, ".cg", : "memory")
#undef TM_LOAD_CACHED

#define TM_STORE_CACHED(name)                                                                                         \
  template <class T, int N> TM_FN void tm_store_##name(T *memory, tm_vec<T, N> value)                                 \
  {                                                                                                                   \
    using cached = tm_cached<T, N>;                                                                                   \
    cached x;                                                                                                         \
    x.vector = value;                                                                                                 \
    unsigned long long at = tm_global_address(memory);                                                                \
    if constexpr (cached::bytes == 1) {                                                                               \
      asm volatile("st.global." #name ".u8 [%0], %1;" ::"l"(at), "h"(static_cast<unsigned short>(x.byte)) : "memory");\
    } else if constexpr (cached::bytes == 2) {                                                                        \
      asm volatile("st.global." #name ".u16 [%0], %1;" ::"l"(at), "h"(x.half) : "memory");                            \
    } else if constexpr (cached::bytes == 4) {                                                                        \
      asm volatile("st.global." #name ".u32 [%0], %1;" ::"l"(at), "r"(x.word[0]) : "memory");                         \
    } else if constexpr (cached::bytes == 8) {                                                                        \
      asm volatile("st.global." #name ".v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(x.word[0]), "r"(x.word[1])             \
                   : "memory");                                                                                       \
    } else {                                                                                                          \
      asm volatile("st.global." #name ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.word[0]), "r"(x.word[1]),    \
                   "r"(x.word[2]), "r"(x.word[3])                                                                     \
                   : "memory");                                                                                       \
    }                                                                                                                 \
  }
TM_STORE_CACHED(cs)
TM_STORE_CACHED(cg)
TM_STORE_CACHED(wt)
#undef TM_STORE_CACHED

template <class T> TM_FN void tm_prefetch_l1(T *memory)
{
  asm volatile("prefetch.global.L1 [%0];" ::"l"(tm_global_address(memory)));
}
template <class T> TM_FN void tm_prefetch_l2(T *memory)
{
  asm volatile("prefetch.global.L2 [%0];" ::"l"(tm_global_address(memory)));
}
