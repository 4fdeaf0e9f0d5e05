// Blocks of a cluster: their barrier, their numbers, their shared memory; and grids that depend on each other. PTX ISA,
// "barrier.cluster", "mapa", "griddepcontrol".

TM_FN void tm_cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
TM_FN void tm_cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
TM_FN void tm_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

TM_FN int tm_cluster_rank()
{
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The same place in the shared memory of another block.
template <class T> TM_FN T *tm_cluster_map(T *memory, int block)
{
  T *there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(memory), "r"(block));
  return there;
}

// What is at the same place in the shared memory of another block.
template <class T> TM_FN T tm_cluster_load(T *memory, int block) { return *tm_cluster_map(memory, block); }

// Until the grids before this one have ended and their results are seen.
TM_FN void tm_grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Grids after this one may begin.
TM_FN void tm_grid_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
