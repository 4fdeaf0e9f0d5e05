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
struct alignas(64) tm_tensor_map {
  void *address;
  tm_u64 strides[4]; /* of dimensions 1 to 4, in bytes */
  tm_u32 sizes[5];
  tm_u32 box[5];
  const tm_bounds *bounds; /* of the tensor's memory; null where nothing is checked */
  tm_u16 rank, element_bytes, swizzle; /* swizzle: 0, 32, 64 or 128 bytes */
  tm_u8 fill_nan, is_float;
  tm_u8 reserved[8];
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
enum tm_element { tm_is_f16, tm_is_bf16, tm_is_tf32, tm_is_f32, tm_is_i8, tm_is_u8, tm_is_i32, tm_is_e4m3, tm_is_e5m2 };

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
}
