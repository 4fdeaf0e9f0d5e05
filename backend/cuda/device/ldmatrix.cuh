// Matrices of 8 rows of 16 bytes from shared memory to registers, by a warp. Lane 8·i + r gives the address of row r of
// matrix i; each lane gets 4 bytes of each matrix. PTX ISA, "ldmatrix".

#define TM_LDMATRIX(name, how)                                                                                        \
  template <class T> TM_FN void tm_ldmatrix_x1##name(T *registers, tm_shared<T> row)                                  \
  {                                                                                                                   \
    unsigned *r = reinterpret_cast<unsigned *>(registers);                                                            \
    asm volatile("ldmatrix.sync.aligned.m8n8.x1" how ".shared.b16 {%0}, [%1];"                                        \
                 : "=r"(r[0])                                                                                         \
                 : "r"(tm_shared_address(row))                                                                        \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  template <class T> TM_FN void tm_ldmatrix_x2##name(T *registers, tm_shared<T> row)                                  \
  {                                                                                                                   \
    unsigned *r = reinterpret_cast<unsigned *>(registers);                                                            \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];"                                    \
                 : "=r"(r[0]), "=r"(r[1])                                                                             \
                 : "r"(tm_shared_address(row))                                                                        \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  template <class T> TM_FN void tm_ldmatrix_x4##name(T *registers, tm_shared<T> row)                                  \
  {                                                                                                                   \
    unsigned *r = reinterpret_cast<unsigned *>(registers);                                                            \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];"                            \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                     \
                 : "r"(tm_shared_address(row))                                                                        \
                 : "memory");                                                                                         \
  }
TM_LDMATRIX(, "")
TM_LDMATRIX(_trans, ".trans")
#undef TM_LDMATRIX
