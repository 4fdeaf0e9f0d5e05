// Barriers of a part of a block: the warps that take part say how many threads they are together. PTX ISA, "bar".

TM_FN void tm_barrier_sync(int id, int threads)
{
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Does not wait for the others.
TM_FN void tm_barrier_arrive(int id, int threads)
{
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

TM_FN void tm_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
