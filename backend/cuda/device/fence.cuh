// Order of memory accesses, as seen by the block, the cluster, the GPU, the system. PTX ISA, "membar / fence".

TM_FN void tm_fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
TM_FN void tm_fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
TM_FN void tm_fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
TM_FN void tm_fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Initialised mbarriers are seen by the cluster and by the copy engine.
TM_FN void tm_fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Between ordinary accesses to a memory and those of the copy engine and of wgmma.
TM_FN void tm_fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
TM_FN void tm_fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
