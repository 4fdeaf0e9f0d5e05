// Matrices of 8 rows of 16 bytes from registers to shared memory, by a warp: the reverse of ldmatrix. PTX ISA, "stmatrix".

#define TM_STMATRIX(name, how)                                                                                        \
  template <class T> TM_FN void tm_stmatrix_x1##name(tm_shared<T> row, const T *registers)                            \
  {                                                                                                                   \
    const unsigned *r = reinterpret_cast<const unsigned *>(registers);                                                \
    asm volatile("stmatrix.sync.aligned.m8n8.x1" how ".shared.b16 [%0], {%1};"                                        \
                 :                                                                                                    \
                 : "r"(tm_shared_address(row)), "r"(r[0])                                                             \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  template <class T> TM_FN void tm_stmatrix_x2##name(tm_shared<T> row, const T *registers)                            \
  {                                                                                                                   \
    const unsigned *r = reinterpret_cast<const unsigned *>(registers);                                                \
    asm volatile("stmatrix.sync.aligned.m8n8.x2" how ".shared.b16 [%0], {%1, %2};"                                    \
                 :                                                                                                    \
                 : "r"(tm_shared_address(row)), "r"(r[0]), "r"(r[1])                                                  \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  template <class T> TM_FN void tm_stmatrix_x4##name(tm_shared<T> row, const T *registers)                            \
  {                                                                                                                   \
    const unsigned *r = reinterpret_cast<const unsigned *>(registers);                                                \
    asm volatile("stmatrix.sync.aligned.m8n8.x4" how ".shared.b16 [%0], {%1, %2, %3, %4};"                            \
                 :                                                                                                    \
                 : "r"(tm_shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])                            \
                 : "memory");                                                                                         \
  }
TM_STMATRIX(, "")
TM_STMATRIX(_trans, ".trans")
#undef TM_STMATRIX
