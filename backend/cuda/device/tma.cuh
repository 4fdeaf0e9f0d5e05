// The copy engine: boxes of tensors, and runs of bytes, between global and shared memory. One thread asks for a copy.
// Loads count their bytes on an mbarrier, stores are waited for in groups. Coordinates are innermost first. PTX ISA,
// "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", "cp.async.bulk".

#ifndef TM_TENSOR_MAP
#define TM_TENSOR_MAP
// What the driver's cuTensorMapEncodeTiled makes: where a tensor lies, its shape, its box, its swizzle.
struct alignas(64) tm_tensor_map { unsigned char opaque[128]; };
#endif

#define TM_TMA(rank, at, bar, coordinates, ...)                                                                       \
  template <class T, class B>                                                                                         \
  TM_FN void tm_tma_load_##rank##d(T *destination, const tm_tensor_map &map, B *barrier, TM_TMA_INTS_##rank)          \
  {                                                                                                                   \
    asm volatile("cp.async.bulk.tensor." #rank                                                                        \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" at "}], [%2];" ::"r"(      \
                     tm_shared_address(destination)),                                                                 \
                 "l"(&map), "r"(tm_shared_address(barrier)), __VA_ARGS__                                              \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  /* To the same place in every block of the cluster whose bit is set. */                                             \
  template <class T, class B>                                                                                         \
  TM_FN void tm_tma_load_multicast_##rank##d(                                                                         \
      T *destination, const tm_tensor_map &map, B *barrier, int blocks, TM_TMA_INTS_##rank)                           \
  {                                                                                                                   \
    asm volatile("cp.async.bulk.tensor." #rank                                                                        \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {" at      \
                 "}], [%2], " bar ";" ::"r"(tm_shared_address(destination)),                                          \
                 "l"(&map), "r"(tm_shared_address(barrier)), __VA_ARGS__, "h"(static_cast<unsigned short>(blocks))    \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  template <class T> TM_FN void tm_tma_store_##rank##d(const tm_tensor_map &map, T *source, TM_TMA_INTS_##rank)       \
  {                                                                                                                   \
    asm volatile("cp.async.bulk.tensor." #rank "d.global.shared::cta.tile.bulk_group [%0, {" coordinates              \
                 "}], [%1];" ::"l"(&map),                                                                             \
                 "r"(tm_shared_address(source)), __VA_ARGS__                                                          \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  /* Added to what is there. */                                                                                       \
  template <class T> TM_FN void tm_tma_reduce_add_##rank##d(const tm_tensor_map &map, T *source, TM_TMA_INTS_##rank)  \
  {                                                                                                                   \
    asm volatile("cp.reduce.async.bulk.tensor." #rank "d.global.shared::cta.add.tile.bulk_group [%0, {" coordinates   \
                 "}], [%1];" ::"l"(&map),                                                                             \
                 "r"(tm_shared_address(source)), __VA_ARGS__                                                          \
                 : "memory");                                                                                         \
  }
#define TM_TMA_INTS_1 int c0
#define TM_TMA_INTS_2 int c0, int c1
#define TM_TMA_INTS_3 int c0, int c1, int c2
#define TM_TMA_INTS_4 int c0, int c1, int c2, int c3
#define TM_TMA_INTS_5 int c0, int c1, int c2, int c3, int c4
TM_TMA(1, "%3", "%4", "%2", "r"(c0))
TM_TMA(2, "%3, %4", "%5", "%2, %3", "r"(c0), "r"(c1))
TM_TMA(3, "%3, %4, %5", "%6", "%2, %3, %4", "r"(c0), "r"(c1), "r"(c2))
TM_TMA(4, "%3, %4, %5, %6", "%7", "%2, %3, %4, %5", "r"(c0), "r"(c1), "r"(c2), "r"(c3))
TM_TMA(5, "%3, %4, %5, %6, %7", "%8", "%2, %3, %4, %5, %6", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4))
#undef TM_TMA
#undef TM_TMA_INTS_1
#undef TM_TMA_INTS_2
#undef TM_TMA_INTS_3
#undef TM_TMA_INTS_4
#undef TM_TMA_INTS_5

TM_FN void tm_tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most Pending of the latest groups have not been written, or, below, have not been read.
template <int Pending> TM_FN void tm_tma_wait()
{
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}
template <int Pending> TM_FN void tm_tma_wait_read()
{
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

template <class T, class S, class B> TM_FN void tm_bulk_load(T *destination, S *source, int bytes, B *barrier)
{
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   tm_shared_address(destination)),
               "l"(tm_global_address(source)), "r"(bytes), "r"(tm_shared_address(barrier))
               : "memory");
}

template <class T, class S> TM_FN void tm_bulk_store(T *destination, S *source, int bytes)
{
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(tm_global_address(destination)),
               "r"(tm_shared_address(source)), "r"(bytes)
               : "memory");
}

TM_FN void tm_prefetch_tensor_map(const tm_tensor_map &map)
{
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
