/* What a kernel built for the host and the simulator's engine agree on. The kernel is one shared object, compiled for
 * each kernel; the engine is another, compiled once. Neither includes a system header here, which keeps kernels quick
 * to compile. */
#pragma once

typedef unsigned char tm_u8;
typedef unsigned short tm_u16;
typedef unsigned int tm_u32;
typedef unsigned long long tm_u64;

struct tm_dim {
  tm_u32 x, y, z;
};

/* The thread that runs now, as the kernel sees it. The engine's fibers begin with it. */
struct tm_thread {
  tm_dim thread, block, block_dim, grid_dim;
  char *shared; /* the block's shared memory */
};

/* The bytes that a pointer may reach, and the memory that they are part of. */
struct tm_bounds {
  char *low, *high;
  void *region;
  const char *name;
};

/* How a pointer parameter is passed to a kernel. */
struct tm_argument {
  void *address;
  const tm_bounds *bounds;
};

/* A tensor map: the tensor in global memory that TMA instructions address by coordinates, the innermost first. */
#define TM_TENSOR_MAP
struct alignas(64) tm_tensor_map {
  char *address;
  tm_u64 strides[4]; /* of dimensions 1 to 4, in bytes */
  tm_u32 sizes[5];
  tm_u32 box[5];
  const tm_bounds *bounds; /* of the tensor's memory; null where nothing is checked */
  tm_u16 rank, element_bytes, swizzle; /* swizzle: 0, 32, 64 or 128 bytes */
  tm_u8 type;                          /* a CUtensorMapDataType */
  tm_u8 fill_nan;
};

/* Kinds of instructions, counted one by one. */
enum tm_kind {
  tm_kind_global_load, tm_kind_global_store, tm_kind_shared_load, tm_kind_shared_store,
  tm_kind_barrier, tm_kind_named_barrier, tm_kind_warp_sync, tm_kind_shuffle, tm_kind_vote,
  tm_kind_ldmatrix, tm_kind_stmatrix, tm_kind_mma, tm_kind_wmma, tm_kind_wgmma,
  tm_kind_cp_async, tm_kind_mbarrier, tm_kind_tma, tm_kind_fence, tm_kind_cluster, tm_kind_atomic, tm_kind_registers,
  tm_kinds
};

/* Element types of the tensor instructions. */
enum tm_element {
  tm_is_f16, tm_is_bf16, tm_is_tf32, tm_is_f32, tm_is_f64, tm_is_i8, tm_is_u8, tm_is_i32, tm_is_e4m3, tm_is_e5m2
};

/* How lanes exchange values. */
enum tm_exchange {
  tm_shuffles_idx, tm_shuffles_up, tm_shuffles_down, tm_shuffles_xor,
  tm_votes_any, tm_votes_all, tm_votes_ballot, tm_votes_elect,
  tm_reduces_add, tm_reduces_min, tm_reduces_max, tm_reduces_and, tm_reduces_or, tm_reduces_xor
};

/* Steps of an mbarrier. */
enum tm_mbarrier_step {
  tm_mbarrier_inits, tm_mbarrier_invalidates, tm_mbarrier_arrives, tm_mbarrier_expects, tm_mbarrier_arrives_expecting,
  tm_mbarrier_tests, tm_mbarrier_waits
};

enum tm_tma_kind { tm_tma_loads, tm_tma_stores, tm_tma_adds };
enum tm_fence_kind {
  tm_fences_block, tm_fences_cluster, tm_fences_gpu, tm_fences_system, tm_fences_mbarrier_init, tm_fences_proxy
};

/* The shape and the types of a product of matrices. */
struct tm_product {
  tm_u32 m, n, k;
  tm_element a, b, c;
};

#define TM_LINE __builtin_LINE()

extern "C" {

extern __thread tm_thread *tm_self __attribute__((tls_model("initial-exec"), visibility("default")));

/* Checked accesses return where the bytes may really be read or written: a scratch place after a problem. `line` is the
 * line of the kernel's text, or 0 where only the return address tells it. */
const void *tm_sim_read(const void *at, tm_u32 bytes, const tm_bounds *bounds, tm_u32 line);
void *tm_sim_write(void *at, tm_u32 bytes, const tm_bounds *bounds, tm_u32 line);
const tm_bounds *tm_sim_shared_bounds(tm_u64 offset, tm_u64 bytes, tm_u32 line);

void tm_sim_barrier(tm_u32 line);
void tm_sim_named_barrier(tm_u32 id, tm_u32 threads, tm_u32 waits, tm_u32 line);
void tm_sim_warp_sync(tm_u32 mask, tm_u32 line);

/* Lanes of a warp. `value` is what this lane gives; the result is what it gets. */
tm_u64 tm_sim_exchange(tm_u32 how, tm_u64 value, int other, tm_u32 width, tm_u32 line);

/* Matrices of 8 rows of 16 bytes: `count` of them, transposed or not, from or to shared memory. */
void tm_sim_matrices(tm_u32 count, tm_u32 transposed, tm_u32 store, void *registers, void *row, const tm_bounds *bounds,
                     tm_u32 line);

/* c += a * b on the fragments of mma.sync, and on those of wmma, which are ours. */
void tm_sim_mma(const tm_product *product, void *c, const void *a, const void *b, tm_u32 line);
void tm_sim_quad_mma(const tm_product *product, void *c, const void *a, const void *b, tm_u32 line);
void tm_sim_wmma(const tm_product *product, void *c, const void *a, const void *b, tm_u32 line);
void tm_sim_wmma_move(const tm_product *product, tm_u32 operand, tm_u32 store, void *fragment, void *memory,
                      const tm_bounds *bounds, tm_u32 stride, tm_u32 by_columns, tm_u32 line);

/* cp.async: the first `copied` of `bytes` bytes are copied, the others become 0. A wait leaves `pending` groups. */
void tm_sim_copy(void *to, const tm_bounds *to_bounds, const void *from, const tm_bounds *from_bounds, tm_u32 bytes,
                 tm_u32 copied, tm_u32 line);
void tm_sim_copy_commit(tm_u32 line);
void tm_sim_copy_wait(tm_u32 pending, tm_u32 line);
void tm_sim_copy_wait_all(tm_u32 line);
void tm_sim_copy_arrive(void *mbarrier, const tm_bounds *bounds, tm_u32 line);

/* `block`: the block of the cluster whose mbarrier is meant, or -1 for the one that the address is in. */
tm_u32 tm_sim_mbarrier(tm_u32 step, void *mbarrier, const tm_bounds *bounds, tm_u32 value, int block, tm_u32 line);

void tm_sim_tma(tm_u32 kind, const tm_tensor_map *map, void *shared, const tm_bounds *bounds, void *mbarrier,
                const tm_bounds *mbarrier_bounds, tm_u32 blocks, const int *coordinates, tm_u32 line);
void tm_sim_bulk(tm_u32 kind, void *shared, const tm_bounds *bounds, void *global, const tm_bounds *global_bounds,
                 tm_u32 bytes, void *mbarrier, const tm_bounds *mbarrier_bounds, tm_u32 line);
void tm_sim_bulk_commit(tm_u32 line);
void tm_sim_bulk_wait(tm_u32 pending, tm_u32 only_read, tm_u32 line);

void tm_sim_wgmma(const tm_product *product, void *d, const void *a, tm_u64 a_matrix, tm_u64 b_matrix, tm_u32 transpose_a,
                  tm_u32 transpose_b, tm_u32 accumulate, tm_u32 line);
void tm_sim_wgmma_fence(tm_u32 line);
void tm_sim_wgmma_commit(tm_u32 line);
void tm_sim_wgmma_wait(tm_u32 pending, tm_u32 line);

void tm_sim_fence(tm_u32 kind, tm_u32 line);
void tm_sim_cluster_arrive(tm_u32 relaxed, tm_u32 line);
void tm_sim_cluster_wait(tm_u32 line);
tm_u32 tm_sim_cluster_rank();
void *tm_sim_cluster_map(void *shared, const tm_bounds *bounds, tm_u32 block, const tm_bounds **there, tm_u32 line);
void tm_sim_count(tm_u32 kind);
void tm_sim_registers(tm_u32 registers, tm_u32 more, tm_u32 line);

/* Where an atomic operation may really change `bytes` bytes. */
void *tm_sim_atomic(void *at, tm_u32 bytes, const tm_bounds *bounds, tm_u32 line);
}
