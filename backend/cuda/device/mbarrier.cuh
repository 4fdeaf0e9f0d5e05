// Barriers in shared memory that count arrivals and bytes; each is 8 bytes, aligned to 8. PTX ISA, "mbarrier".

template <class T> TM_FN void tm_mbarrier_init(T *barrier, int count)
{
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(tm_shared_address(barrier)), "r"(count) : "memory");
}

// The memory may serve another purpose.
template <class T> TM_FN void tm_mbarrier_invalidate(T *barrier)
{
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(tm_shared_address(barrier)) : "memory");
}

template <class T> TM_FN void tm_mbarrier_arrive(T *barrier)
{
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(tm_shared_address(barrier))
               : "memory");
}

// The phase completes only after so many bytes more.
template <class T> TM_FN void tm_mbarrier_expect_tx(T *barrier, int bytes)
{
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(tm_shared_address(barrier)), "r"(bytes)
               : "memory");
}

template <class T> TM_FN void tm_mbarrier_arrive_expect_tx(T *barrier, int bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(tm_shared_address(barrier)), "r"(bytes)
               : "memory");
}

// At the barrier of the same offset in another block of the cluster.
template <class T> TM_FN void tm_mbarrier_arrive_remote(T *barrier, int block)
{
  asm volatile("{\n .reg .b32 there;\n"
               " mapa.shared::cluster.u32 there, %0, %1;\n"
               " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(tm_shared_address(barrier)),
               "r"(block)
               : "memory");
}

template <class T> TM_FN void tm_mbarrier_arrive_expect_tx_remote(T *barrier, int block, int bytes)
{
  asm volatile("{\n .reg .b32 there;\n"
               " mapa.shared::cluster.u32 there, %0, %1;\n"
               " mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [there], %2;\n}" ::"r"(
                   tm_shared_address(barrier)),
               "r"(block), "r"(bytes)
               : "memory");
}

// Whether the phase of this parity has completed: the first asks, the second may wait a while for it.
template <class T> TM_FN bool tm_mbarrier_test_wait(T *barrier, int parity)
{
  unsigned done;
  asm volatile("{\n .reg .pred p;\n"
               " mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
               " selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(tm_shared_address(barrier)), "r"(parity)
               : "memory");
  return done;
}

template <class T> TM_FN bool tm_mbarrier_try_wait(T *barrier, int parity)
{
  unsigned done;
  asm volatile("{\n .reg .pred p;\n"
               " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
               " selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(tm_shared_address(barrier)), "r"(parity)
               : "memory");
  return done;
}

// Until the phase of this parity has completed.
template <class T> TM_FN void tm_mbarrier_wait(T *barrier, int parity)
{
  while (!tm_mbarrier_try_wait(barrier, parity)) {}
}
