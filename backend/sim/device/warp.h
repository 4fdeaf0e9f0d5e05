/* What lanes exchange, and barriers below the block's. */
#pragma once

inline void tm_barrier_sync(int id, int threads, tm_u32 line = TM_LINE) { tm_sim_named_barrier(id, threads, 1, line); }
inline void tm_barrier_arrive(int id, int threads, tm_u32 line = TM_LINE) { tm_sim_named_barrier(id, threads, 0, line); }
inline void tm_warp_sync(tm_u32 line = TM_LINE) { tm_sim_warp_sync(~0u, line); }

#define TM_SHUFFLE(name)                                                                        \
  template <int Width = 32, class V>                                                            \
  inline typename tm_loaded<V>::type tm_shuffle_##name(V given, int other, tm_u32 line = TM_LINE) { \
    typename tm_loaded<V>::type value = given;                                                  \
    static_assert(sizeof value <= 8, "a shuffle moves at most 8 bytes");                        \
    tm_u64 word = 0;                                                                            \
    __builtin_memcpy(&word, &value, sizeof value);                                              \
    word = tm_sim_exchange(tm_shuffles_##name, word, other, Width, line);                       \
    __builtin_memcpy(&value, &word, sizeof value);                                              \
    return value;                                                                               \
  }
TM_SHUFFLE(idx)
TM_SHUFFLE(up)
TM_SHUFFLE(down)
TM_SHUFFLE(xor)
#undef TM_SHUFFLE

inline bool tm_vote_any(bool vote, tm_u32 line = TM_LINE) { return tm_sim_exchange(tm_votes_any, vote, 0, 32, line); }
inline bool tm_vote_all(bool vote, tm_u32 line = TM_LINE) { return tm_sim_exchange(tm_votes_all, vote, 0, 32, line); }
inline int tm_ballot(bool vote, tm_u32 line = TM_LINE) { return (int)tm_sim_exchange(tm_votes_ballot, vote, 0, 32, line); }
inline bool tm_elect(tm_u32 line = TM_LINE) { return tm_sim_exchange(tm_votes_elect, 0, 0, 32, line); }

#define TM_WARP_REDUCE(op)                                                       \
  inline int tm_warp_reduce_##op##_i32(int value, tm_u32 line = TM_LINE) {       \
    return (int)tm_sim_exchange(tm_reduces_##op, (tm_u32)value, 0, 32, line);    \
  }
TM_WARP_REDUCE(add)
TM_WARP_REDUCE(min)
TM_WARP_REDUCE(max)
TM_WARP_REDUCE(and)
TM_WARP_REDUCE(or)
TM_WARP_REDUCE(xor)
#undef TM_WARP_REDUCE

inline void tm_fence_block(tm_u32 line = TM_LINE) { tm_sim_fence(tm_fences_block, line); }
inline void tm_fence_cluster(tm_u32 line = TM_LINE) { tm_sim_fence(tm_fences_cluster, line); }
inline void tm_fence_gpu(tm_u32 line = TM_LINE) { tm_sim_fence(tm_fences_gpu, line); }
inline void tm_fence_system(tm_u32 line = TM_LINE) { tm_sim_fence(tm_fences_system, line); }
inline void tm_fence_mbarrier_init(tm_u32 line = TM_LINE) { tm_sim_fence(tm_fences_mbarrier_init, line); }
inline void tm_fence_proxy_async(tm_u32 line = TM_LINE) { tm_sim_fence(tm_fences_proxy, line); }
inline void tm_fence_proxy_async_global(tm_u32 line = TM_LINE) { tm_sim_fence(tm_fences_proxy, line); }

inline void tm_cluster_arrive(tm_u32 line = TM_LINE) { tm_sim_cluster_arrive(0, line); }
inline void tm_cluster_arrive_relaxed(tm_u32 line = TM_LINE) { tm_sim_cluster_arrive(1, line); }
inline void tm_cluster_wait(tm_u32 line = TM_LINE) { tm_sim_cluster_wait(line); }
inline int tm_cluster_rank() { return (int)tm_sim_cluster_rank(); }
#if TM_CHECKED
template <class T>
inline tm_shared<T> tm_cluster_map(tm_shared<T> p, int block, tm_u32 line = TM_LINE) {
  const tm_bounds *there;
  T *at = (T *)tm_sim_cluster_map((void *)p.at, p.bounds, block, &there, line);
  return tm_shared<T>(at, there);
}
template <class T>
inline T tm_cluster_load(tm_shared<T> p, int block, tm_u32 line = TM_LINE) {
  return tm_load<1>(tm_cluster_map(p, block, line), line)[0];
}
#else
template <class T>
inline T *tm_cluster_map(T *p, int block, tm_u32 line = TM_LINE) {
  const tm_bounds *there;
  return (T *)tm_sim_cluster_map((void *)p, 0, block, &there, line);
}
template <class T>
inline T tm_cluster_load(T *p, int block, tm_u32 line = TM_LINE) {
  return *tm_cluster_map(p, block, line);
}
#endif
/* Grids run one after the other here. */
inline void tm_grid_wait() {}
inline void tm_grid_launch() {}

/* Only whether the registers suffice is of interest here. */
template <int Registers>
inline void tm_setmaxnreg_inc(tm_u32 line = TM_LINE) { tm_sim_registers(Registers, 1, line); }
template <int Registers>
inline void tm_setmaxnreg_dec(tm_u32 line = TM_LINE) { tm_sim_registers(Registers, 0, line); }
