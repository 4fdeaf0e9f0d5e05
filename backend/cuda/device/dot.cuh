// The dot product of four bytes, added to c, by one thread. PTX ISA, "dp4a".

#define TM_DP4A(types, ptx, A, B)                                                                                     \
  TM_FN void tm_dp4a_##types##_i32(int *c, const A *a, const B *b)                                                    \
  {                                                                                                                   \
    asm("dp4a." ptx " %0, %1, %2, %0;"                                                                                \
        : "+r"(c[0])                                                                                                  \
        : "r"(*reinterpret_cast<const unsigned *>(a)), "r"(*reinterpret_cast<const unsigned *>(b)));                  \
  }
TM_DP4A(i8, "s32.s32", signed char, signed char)
TM_DP4A(i8_u8, "s32.u32", signed char, unsigned char)
TM_DP4A(u8_i8, "u32.s32", unsigned char, signed char)
TM_DP4A(u8, "u32.u32", unsigned char, unsigned char)
#undef TM_DP4A
