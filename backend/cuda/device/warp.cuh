// What the 32 lanes of a warp exchange: shuffles, votes, reductions. All of them take part. PTX ISA, "shfl.sync",
// "vote.sync", "redux.sync", "elect.sync".

#define TM_SHUFFLE(name, how, clamp)                                                                                  \
  template <int Width> TM_FN unsigned tm_shuffle_##name##_word(unsigned x, int other)                                 \
  {                                                                                                                   \
    unsigned y;                                                                                                       \
    asm volatile("shfl.sync." how ".b32 %0, %1, %2, %3, 0xffffffff;"                                                  \
                 : "=r"(y)                                                                                            \
                 : "r"(x), "r"(other), "n"((32 - Width) << 8 | clamp));                                               \
    return y;                                                                                                         \
  }                                                                                                                   \
  /* In segments of Width lanes; of values of up to 8 bytes. */                                                       \
  template <int Width = 32, class T> TM_FN T tm_shuffle_##name(T value, int other)                                    \
  {                                                                                                                   \
    constexpr int words = (sizeof(T) + 3) / 4;                                                                        \
    union packed { unsigned word[words]; T value; __device__ packed() {} } x;                                         \
    x.word[0] = 0;                                                                                                    \
    x.value = value;                                                                                                  \
    _Pragma("unroll") for (int i = 0; i < words; i++)                                                                 \
      x.word[i] = tm_shuffle_##name##_word<Width>(x.word[i], other);                                                  \
    return x.value;                                                                                                   \
  }
TM_SHUFFLE(idx, "idx", 31)
TM_SHUFFLE(up, "up", 0)
TM_SHUFFLE(down, "down", 31)
TM_SHUFFLE(xor, "bfly", 31)
#undef TM_SHUFFLE

#define TM_VOTE(name, how)                                                                                            \
  TM_FN bool tm_vote_##name(bool vote)                                                                                \
  {                                                                                                                   \
    unsigned result;                                                                                                  \
    asm volatile("{\n .reg .pred p, q;\n"                                                                             \
                 " setp.ne.u32 p, %1, 0;\n"                                                                           \
                 " vote.sync." how ".pred q, p, 0xffffffff;\n"                                                        \
                 " selp.u32 %0, 1, 0, q;\n}"                                                                          \
                 : "=r"(result)                                                                                       \
                 : "r"(static_cast<unsigned>(vote)));                                                                 \
    return result;                                                                                                    \
  }
TM_VOTE(any, "any")
TM_VOTE(all, "all")
#undef TM_VOTE

// Bit i is lane i's vote.
TM_FN int tm_ballot(bool vote)
{
  int result;
  asm volatile("{\n .reg .pred p;\n"
               " setp.ne.u32 p, %1, 0;\n"
               " vote.sync.ballot.b32 %0, p, 0xffffffff;\n}"
               : "=r"(result)
               : "r"(static_cast<unsigned>(vote)));
  return result;
}

// True in one lane.
TM_FN bool tm_elect()
{
  unsigned result;
  asm volatile("{\n .reg .pred p;\n"
               " elect.sync _|p, 0xffffffff;\n"
               " selp.u32 %0, 1, 0, p;\n}"
               : "=r"(result));
  return result;
}

#define TM_WARP_REDUCE(op, ptx)                                                                                       \
  TM_FN int tm_warp_reduce_##op##_i32(int value)                                                                      \
  {                                                                                                                   \
    int result;                                                                                                       \
    asm volatile("redux.sync." ptx " %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));                               \
    return result;                                                                                                    \
  }
TM_WARP_REDUCE(add, "add.s32")
TM_WARP_REDUCE(min, "min.s32")
TM_WARP_REDUCE(max, "max.s32")
TM_WARP_REDUCE(and, "and.b32")
TM_WARP_REDUCE(or, "or.b32")
TM_WARP_REDUCE(xor, "xor.b32")
#undef TM_WARP_REDUCE
