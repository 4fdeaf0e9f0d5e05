/* What goes on behind a thread's back: cp.async, mbarriers, TMA, wgmma. */
#pragma once

#define TM_CP_ASYNC(bytes)                                                                                             \
  template <class P, class Q>                                                                                          \
  inline void tm_cp_async_##bytes(P destination, Q source, tm_u32 line = TM_LINE) {                                    \
    tm_sim_copy((void *)tm_address(destination), tm_bounds_of(destination), tm_address(source), tm_bounds_of(source),  \
                bytes, bytes, line);                                                                                   \
  }                                                                                                                    \
  template <class P, class Q>                                                                                          \
  inline void tm_cp_async_zfill_##bytes(P destination, Q source, int copied, tm_u32 line = TM_LINE) {                  \
    tm_sim_copy((void *)tm_address(destination), tm_bounds_of(destination), tm_address(source), tm_bounds_of(source),  \
                bytes, copied, line);                                                                                  \
  }
TM_CP_ASYNC(4)
TM_CP_ASYNC(8)
TM_CP_ASYNC(16)
#undef TM_CP_ASYNC
inline void tm_cp_async_commit(tm_u32 line = TM_LINE) { tm_sim_copy_commit(line); }
template <int Pending>
inline void tm_cp_async_wait(tm_u32 line = TM_LINE) { tm_sim_copy_wait(Pending, line); }
inline void tm_cp_async_wait_all(tm_u32 line = TM_LINE) { tm_sim_copy_wait_all(line); }
template <class P>
inline void tm_cp_async_mbarrier_arrive(P barrier, tm_u32 line = TM_LINE) {
  tm_sim_copy_arrive((void *)tm_address(barrier), tm_bounds_of(barrier), line);
}

template <class P>
inline tm_u32 tm_mbarrier(tm_u32 step, P barrier, int value, int block, tm_u32 line) {
  return tm_sim_mbarrier(step, (void *)tm_address(barrier), tm_bounds_of(barrier), value, block, line);
}
template <class P>
inline void tm_mbarrier_init(P barrier, int count, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_inits, barrier, count, -1, line);
}
template <class P>
inline void tm_mbarrier_invalidate(P barrier, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_invalidates, barrier, 0, -1, line);
}
template <class P>
inline void tm_mbarrier_arrive(P barrier, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_arrives, barrier, 0, -1, line);
}
template <class P>
inline void tm_mbarrier_expect_tx(P barrier, int bytes, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_expects, barrier, bytes, -1, line);
}
template <class P>
inline void tm_mbarrier_arrive_expect_tx(P barrier, int bytes, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_arrives_expecting, barrier, bytes, -1, line);
}
template <class P>
inline void tm_mbarrier_arrive_remote(P barrier, int block, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_arrives, barrier, 0, block, line);
}
template <class P>
inline void tm_mbarrier_arrive_expect_tx_remote(P barrier, int block, int bytes, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_arrives_expecting, barrier, bytes, block, line);
}
template <class P>
inline bool tm_mbarrier_test_wait(P barrier, int parity, tm_u32 line = TM_LINE) {
  return tm_mbarrier(tm_mbarrier_tests, barrier, parity, -1, line);
}
/* It may wait until the phase has completed, and here it does. */
template <class P>
inline bool tm_mbarrier_try_wait(P barrier, int parity, tm_u32 line = TM_LINE) {
  return tm_mbarrier(tm_mbarrier_waits, barrier, parity, -1, line);
}
template <class P>
inline void tm_mbarrier_wait(P barrier, int parity, tm_u32 line = TM_LINE) {
  tm_mbarrier(tm_mbarrier_waits, barrier, parity, -1, line);
}

#define TM_TMA(rank, ints, list)                                                                                     \
  template <class P, class B>                                                                                        \
  inline void tm_tma_load_##rank##d(P destination, const tm_tensor_map &map, B barrier, TM_UNPACK ints,              \
                                    tm_u32 line = TM_LINE) {                                                         \
    const int at[5] = list;                                                                                          \
    tm_sim_tma(tm_tma_loads, &map, (void *)tm_address(destination), tm_bounds_of(destination),                       \
               (void *)tm_address(barrier), tm_bounds_of(barrier), 0, at, line);                                     \
  }                                                                                                                  \
  template <class P, class B>                                                                                        \
  inline void tm_tma_load_multicast_##rank##d(P destination, const tm_tensor_map &map, B barrier, int blocks,        \
                                              TM_UNPACK ints, tm_u32 line = TM_LINE) {                               \
    const int at[5] = list;                                                                                          \
    tm_sim_tma(tm_tma_loads, &map, (void *)tm_address(destination), tm_bounds_of(destination),                       \
               (void *)tm_address(barrier), tm_bounds_of(barrier), blocks | 0x10000u, at, line);                     \
  }                                                                                                                  \
  template <class P>                                                                                                 \
  inline void tm_tma_store_##rank##d(const tm_tensor_map &map, P source, TM_UNPACK ints, tm_u32 line = TM_LINE) {    \
    const int at[5] = list;                                                                                          \
    tm_sim_tma(tm_tma_stores, &map, (void *)tm_address(source), tm_bounds_of(source), 0, 0, 0, at, line);            \
  }                                                                                                                  \
  template <class P>                                                                                                 \
  inline void tm_tma_reduce_add_##rank##d(const tm_tensor_map &map, P source, TM_UNPACK ints,                        \
                                          tm_u32 line = TM_LINE) {                                                   \
    const int at[5] = list;                                                                                          \
    tm_sim_tma(tm_tma_adds, &map, (void *)tm_address(source), tm_bounds_of(source), 0, 0, 0, at, line);              \
  }
#define TM_UNPACK(...) __VA_ARGS__
#define TM_LIST(...) {__VA_ARGS__}
TM_TMA(1, (int c0), TM_LIST(c0))
TM_TMA(2, (int c0, int c1), TM_LIST(c0, c1))
TM_TMA(3, (int c0, int c1, int c2), TM_LIST(c0, c1, c2))
TM_TMA(4, (int c0, int c1, int c2, int c3), TM_LIST(c0, c1, c2, c3))
TM_TMA(5, (int c0, int c1, int c2, int c3, int c4), TM_LIST(c0, c1, c2, c3, c4))
#undef TM_TMA
#undef TM_UNPACK
#undef TM_LIST

template <class P, class Q, class B>
inline void tm_bulk_load(P destination, Q source, int bytes, B barrier, tm_u32 line = TM_LINE) {
  tm_sim_bulk(tm_tma_loads, (void *)tm_address(destination), tm_bounds_of(destination), (void *)tm_address(source),
              tm_bounds_of(source), bytes, (void *)tm_address(barrier), tm_bounds_of(barrier), line);
}
template <class P, class Q>
inline void tm_bulk_store(P destination, Q source, int bytes, tm_u32 line = TM_LINE) {
  tm_sim_bulk(tm_tma_stores, (void *)tm_address(source), tm_bounds_of(source), (void *)tm_address(destination),
              tm_bounds_of(destination), bytes, 0, 0, line);
}
inline void tm_tma_commit(tm_u32 line = TM_LINE) { tm_sim_bulk_commit(line); }
template <int Pending>
inline void tm_tma_wait(tm_u32 line = TM_LINE) { tm_sim_bulk_wait(Pending, 0, line); }
template <int Pending>
inline void tm_tma_wait_read(tm_u32 line = TM_LINE) { tm_sim_bulk_wait(Pending, 1, line); }
inline void tm_prefetch_tensor_map(const tm_tensor_map &) {}

inline void tm_wgmma_fence(tm_u32 line = TM_LINE) { tm_sim_wgmma_fence(line); }
inline void tm_wgmma_commit(tm_u32 line = TM_LINE) { tm_sim_wgmma_commit(line); }
template <int Pending>
inline void tm_wgmma_wait(tm_u32 line = TM_LINE) { tm_sim_wgmma_wait(Pending, line); }
template <int Slots, class T>
inline void tm_wgmma_hold(T *) {}

/* As on the GPU, with offsets in the block's shared memory for addresses. */
template <int Swizzle, class P>
inline long long tm_wgmma_descriptor(P matrix, int leading, int stride) {
  constexpr tm_u64 mode = Swizzle == 128 ? 1 : Swizzle == 64 ? 2 : Swizzle == 32 ? 3 : 0;
  static_assert(Swizzle == 0 || mode != 0, "a swizzle is of 0, 32, 64 or 128 bytes");
  const tm_u64 start = (tm_u64)((const char *)tm_address(matrix) - tm_self->shared) >> 4 & 0x3fff;
  const tm_u64 across = (leading & 0x3ffff) >> 4, down = (stride & 0x3ffff) >> 4;
  return (long long)(start | across << 16 | down << 32 | mode << 62);
}
