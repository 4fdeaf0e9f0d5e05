/* Accesses with a word on caches, which the host does not have, and atomic operations. */
#pragma once

#define TM_LOAD_CACHED(name)                                                        \
  template <int N, class P>                                                         \
  inline auto tm_load_##name(P memory, tm_u32 line = TM_LINE) {                     \
    return tm_load_at<N>(memory, line);                                             \
  }
#define TM_STORE_CACHED(name)                                                       \
  template <class P, class T, int N>                                                \
  inline void tm_store_##name(P memory, tm_vec<T, N> value, tm_u32 line = TM_LINE) { \
    tm_store_at(memory, value, line);                                               \
  }
#if TM_CHECKED
template <int N, class P>
inline auto tm_load_at(P memory, tm_u32 line) { return tm_load<N>(memory, line); }
template <class P, class T, int N>
inline void tm_store_at(P memory, tm_vec<T, N> value, tm_u32 line) { tm_store(memory, value, line); }
#else
template <int N, class P>
inline auto tm_load_at(P memory, tm_u32) { return tm_load<N>(memory); }
template <class P, class T, int N>
inline void tm_store_at(P memory, tm_vec<T, N> value, tm_u32) { tm_store(memory, value); }
#endif
TM_LOAD_CACHED(nc)
TM_LOAD_CACHED(nc_no_allocate)
TM_LOAD_CACHED(no_allocate)
TM_LOAD_CACHED(cs)
TM_LOAD_CACHED(cg)
TM_STORE_CACHED(cs)
TM_STORE_CACHED(cg)
TM_STORE_CACHED(wt)
#undef TM_LOAD_CACHED
#undef TM_STORE_CACHED
template <class P>
inline void tm_prefetch_l1(P) {}
template <class P>
inline void tm_prefetch_l2(P) {}

/* One operation on one word, repeated until no other thread of the host has come between. */
template <class T, class Word, class F>
inline T tm_atomic_step(Word *at, F change) {
  Word seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  for (;;) {
    const T old = tm_bits<T>(seen);
    const Word next = tm_bits<Word>(static_cast<T>(change(old)));
    if (__atomic_compare_exchange_n(at, &seen, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return old;
  }
}

#define TM_ATOMIC_OF(name, T, Word, result)                                                                      \
  template <class P>                                                                                             \
  inline T name(P memory, T value, tm_u32 line = TM_LINE) {                                                      \
    Word *at = (Word *)tm_sim_atomic((void *)tm_address(memory), sizeof(Word), tm_bounds_of(memory), line);      \
    return tm_atomic_step<T>(at, [=](T old) { return result; });                                                 \
  }
#define TM_ATOMIC(op, type, T, Word, result)                    \
  TM_ATOMIC_OF(tm_atomic_##op##_##type, T, Word, result)        \
  TM_ATOMIC_OF(tm_atomic_##op##_##type##_shared, T, Word, result)
#define TM_ATOMIC_ADD(type, T, Word, result) \
  TM_ATOMIC(add, type, T, Word, result)      \
  TM_ATOMIC_OF(tm_red_add_##type, T, Word, result)

using tm_f16x2 = tm_vec<tm_f16, 2>;
using tm_bf16x2 = tm_vec<tm_bf16, 2>;
template <class T>
inline tm_vec<T, 2> tm_sum_of_pairs(tm_vec<T, 2> a, tm_vec<T, 2> b) {
  for (int i = 0; i < 2; i++) a[i] = T(tm_value(a[i]) + tm_value(b[i]));
  return a;
}
TM_ATOMIC_ADD(f32, float, tm_u32, old + value)
TM_ATOMIC_ADD(f64, double, tm_u64, old + value)
TM_ATOMIC_ADD(f16, tm_f16, tm_u16, tm_f16(tm_value(old) + tm_value(value)))
TM_ATOMIC_ADD(bf16, tm_bf16, tm_u16, tm_bf16(tm_value(old) + tm_value(value)))
TM_ATOMIC_ADD(f16x2, tm_f16x2, tm_u32, tm_sum_of_pairs(old, value))
TM_ATOMIC_ADD(bf16x2, tm_bf16x2, tm_u32, tm_sum_of_pairs(old, value))
TM_ATOMIC_ADD(i32, int, tm_u32, (int)((tm_u32)old + (tm_u32)value))
TM_ATOMIC_ADD(i64, long long, tm_u64, (long long)((tm_u64)old + (tm_u64)value))
TM_ATOMIC(min, i32, int, tm_u32, old < value ? old : value)
TM_ATOMIC(min, i64, long long, tm_u64, old < value ? old : value)
TM_ATOMIC(max, i32, int, tm_u32, old > value ? old : value)
TM_ATOMIC(max, i64, long long, tm_u64, old > value ? old : value)
TM_ATOMIC(exch, i32, int, tm_u32, value)
TM_ATOMIC(exch, i64, long long, tm_u64, value)
TM_ATOMIC(and, i32, int, tm_u32, old & value)
TM_ATOMIC(or, i32, int, tm_u32, old | value)
TM_ATOMIC(xor, i32, int, tm_u32, old ^ value)
#undef TM_ATOMIC_ADD

#define TM_RED_VECTOR(N)                                                                                     \
  template <class P>                                                                                         \
  inline void tm_red_add_f32x##N(P memory, tm_vec<float, N> value, tm_u32 line = TM_LINE) {                  \
    tm_u32 *at = (tm_u32 *)tm_sim_atomic((void *)tm_address(memory), 4 * N, tm_bounds_of(memory), line);     \
    for (int i = 0; i < N; i++) tm_atomic_step<float>(at + i, [=](float old) { return old + value[i]; });    \
  }
TM_RED_VECTOR(2)
TM_RED_VECTOR(4)
#undef TM_RED_VECTOR

#define TM_CAS(name, T, Word)                                                                                \
  template <class P>                                                                                         \
  inline T name(P memory, T expected, T value, tm_u32 line = TM_LINE) {                                      \
    Word *at = (Word *)tm_sim_atomic((void *)tm_address(memory), sizeof(Word), tm_bounds_of(memory), line);  \
    return tm_atomic_step<T>(at, [=](T old) { return old == expected ? value : old; });                      \
  }
TM_CAS(tm_atomic_cas_i32, int, tm_u32)
TM_CAS(tm_atomic_cas_i32_shared, int, tm_u32)
TM_CAS(tm_atomic_cas_i64, long long, tm_u64)
TM_CAS(tm_atomic_cas_i64_shared, long long, tm_u64)
#undef TM_CAS
#undef TM_ATOMIC
#undef TM_ATOMIC_OF
