// Copies of 4, 8 or 16 bytes from global to shared memory that go on behind the thread's back, in groups. Those of 16
// bytes leave L1 alone. PTX ISA, "cp.async".

#define TM_CP_ASYNC(bytes, how)                                                                                       \
  template <class T, class S> TM_FN void tm_cp_async_##bytes(T *destination, S *source)                               \
  {                                                                                                                   \
    asm volatile("cp.async." how ".shared.global [%0], [%1], " #bytes ";"                                             \
                 :                                                                                                    \
                 : "r"(tm_shared_address(destination)), "l"(tm_global_address(source))                                \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  /* The first `copied` bytes are copied, the others become 0. */                                                     \
  template <class T, class S> TM_FN void tm_cp_async_zfill_##bytes(T *destination, S *source, int copied)             \
  {                                                                                                                   \
    asm volatile("cp.async." how ".shared.global [%0], [%1], " #bytes ", %2;"                                         \
                 :                                                                                                    \
                 : "r"(tm_shared_address(destination)), "l"(tm_global_address(source)), "r"(copied)                   \
                 : "memory");                                                                                         \
  }
TM_CP_ASYNC(4, "ca")
TM_CP_ASYNC(8, "ca")
TM_CP_ASYNC(16, "cg")
#undef TM_CP_ASYNC

TM_FN void tm_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most Pending of the latest groups are unfinished.
template <int Pending> TM_FN void tm_cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory"); }

TM_FN void tm_cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// An arrival at an mbarrier, among those it expects, once the thread's copies so far have landed.
template <class T> TM_FN void tm_cp_async_mbarrier_arrive(T *barrier)
{
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(tm_shared_address(barrier)) : "memory");
}
