// Memory changed as one step, relaxed; the value that was there is returned. Global memory as seen by the GPU, shared
// memory as seen by the block. PTX ISA, "atom", "red".

#define TM_ATOMIC(op, type, T, ptx, word, letter)                                                                     \
  template <class P> TM_FN T tm_atomic_##op##_##type(P *memory, T value)                                              \
  {                                                                                                                   \
    T old;                                                                                                            \
    asm volatile("atom.relaxed.gpu.global." ptx " %0, [%1], %2;"                                                      \
                 : "=" letter(reinterpret_cast<word &>(old))                                                          \
                 : "l"(tm_global_address(memory)), letter(reinterpret_cast<word &>(value))                            \
                 : "memory");                                                                                         \
    return old;                                                                                                       \
  }
#define TM_ATOMIC_SHARED(op, type, T, ptx, word, letter)                                                              \
  template <class P> TM_FN T tm_atomic_##op##_##type##_shared(P *memory, T value)                                     \
  {                                                                                                                   \
    T old;                                                                                                            \
    asm volatile("atom.relaxed.cta.shared." ptx " %0, [%1], %2;"                                                      \
                 : "=" letter(reinterpret_cast<word &>(old))                                                          \
                 : "r"(tm_shared_address(memory)), letter(reinterpret_cast<word &>(value))                            \
                 : "memory");                                                                                         \
    return old;                                                                                                       \
  }
#define TM_RED(op, type, T, ptx, word, letter)                                                                        \
  template <class P> TM_FN void tm_red_##op##_##type(P *memory, T value)                                              \
  {                                                                                                                   \
    asm volatile("red.relaxed.gpu.global." ptx " [%0], %1;" ::"l"(tm_global_address(memory)),                         \
                 letter(reinterpret_cast<word &>(value))                                                              \
                 : "memory");                                                                                         \
  }
#define TM_ATOMIC_BOTH(...) TM_ATOMIC(__VA_ARGS__) TM_ATOMIC_SHARED(__VA_ARGS__)

using tm_f16x2 = tm_vec<tm_f16, 2>;
using tm_bf16x2 = tm_vec<tm_bf16, 2>;

TM_ATOMIC_BOTH(add, f32, float, "add.f32", float, "f")
TM_ATOMIC_BOTH(add, f64, double, "add.f64", double, "d")
TM_ATOMIC_BOTH(add, f16, tm_f16, "add.noftz.f16", unsigned short, "h")
TM_ATOMIC_BOTH(add, f16x2, tm_f16x2, "add.noftz.f16x2", unsigned, "r")
TM_ATOMIC(add, bf16, tm_bf16, "add.noftz.bf16", unsigned short, "h")
TM_ATOMIC(add, bf16x2, tm_bf16x2, "add.noftz.bf16x2", unsigned, "r")
TM_ATOMIC_BOTH(add, i32, int, "add.s32", int, "r")
TM_ATOMIC_BOTH(add, i64, long long, "add.u64", long long, "l")
TM_RED(add, f32, float, "add.f32", float, "f")
TM_RED(add, f64, double, "add.f64", double, "d")
TM_RED(add, f16, tm_f16, "add.noftz.f16", unsigned short, "h")
TM_RED(add, f16x2, tm_f16x2, "add.noftz.f16x2", unsigned, "r")
TM_RED(add, bf16, tm_bf16, "add.noftz.bf16", unsigned short, "h")
TM_RED(add, bf16x2, tm_bf16x2, "add.noftz.bf16x2", unsigned, "r")
TM_RED(add, i32, int, "add.s32", int, "r")
TM_RED(add, i64, long long, "add.u64", long long, "l")

// Neighbours, each an atom of its own.
template <class P> TM_FN void tm_red_add_f32x2(P *memory, tm_vec<float, 2> value)
{
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(tm_global_address(memory)), "f"(value[0]),
               "f"(value[1])
               : "memory");
}
template <class P> TM_FN void tm_red_add_f32x4(P *memory, tm_vec<float, 4> value)
{
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(tm_global_address(memory)),
               "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
}

#define TM_ATOMIC_OF_INTEGERS(op, ptx)                                                                                \
  TM_ATOMIC_BOTH(op, i32, int, ptx ".s32", int, "r")                                                                  \
  TM_ATOMIC_BOTH(op, i64, long long, ptx ".s64", long long, "l")
TM_ATOMIC_OF_INTEGERS(min, "min")
TM_ATOMIC_OF_INTEGERS(max, "max")
#undef TM_ATOMIC_OF_INTEGERS
TM_ATOMIC_BOTH(exch, i32, int, "exch.b32", int, "r")
TM_ATOMIC_BOTH(exch, i64, long long, "exch.b64", long long, "l")
TM_ATOMIC_BOTH(and, i32, int, "and.b32", int, "r")
TM_ATOMIC_BOTH(or, i32, int, "or.b32", int, "r")
TM_ATOMIC_BOTH(xor, i32, int, "xor.b32", int, "r")

// The value is stored where memory equals what is expected.
#define TM_CAS(type, T, bits, letter)                                                                                 \
  template <class P> TM_FN T tm_atomic_cas_##type(P *memory, T expected, T value)                                     \
  {                                                                                                                   \
    T old;                                                                                                            \
    asm volatile("atom.relaxed.gpu.global.cas.b" bits " %0, [%1], %2, %3;"                                            \
                 : "=" letter(old)                                                                                    \
                 : "l"(tm_global_address(memory)), letter(expected), letter(value)                                    \
                 : "memory");                                                                                         \
    return old;                                                                                                       \
  }                                                                                                                   \
  template <class P> TM_FN T tm_atomic_cas_##type##_shared(P *memory, T expected, T value)                            \
  {                                                                                                                   \
    T old;                                                                                                            \
    asm volatile("atom.relaxed.cta.shared.cas.b" bits " %0, [%1], %2, %3;"                                            \
                 : "=" letter(old)                                                                                    \
                 : "r"(tm_shared_address(memory)), letter(expected), letter(value)                                    \
                 : "memory");                                                                                         \
    return old;                                                                                                       \
  }
TM_CAS(i32, int, "32", "r")
TM_CAS(i64, long long, "64", "l")
#undef TM_CAS

#undef TM_ATOMIC
#undef TM_ATOMIC_SHARED
#undef TM_ATOMIC_BOTH
#undef TM_RED
