/* A CUDA driver for machines without a GPU: libcuda.so.1 with the functions that taskmap calls. It checks the arguments
 * of every call as far as the driver API's documentation and the CUBIN say, keeps memory on the host, and hands launches
 * to a function of the test. A call whose arguments are wrong writes a line to stderr and to $STUB_LOG, and returns
 * CUDA_ERROR_INVALID_VALUE.
 *
 * STUB_DEVICES    GPUs (1)
 * STUB_MULTIPROCESSORS  of each (132)
 * STUB_VERSION    the driver's version (13000)
 * STUB_MEMORY     bytes that cuMemAlloc gives at most
 * STUB_FAULTS     "pattern=kind;...": what happens to launches of kernels, or in cases, of these names:
 *                 segv, hang (whoever waits for the GPU), lost (an illegal access), wrong (nothing is computed), oom
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef int R;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, ILLEGAL_ADDRESS = 700 };
enum { DEVICES = 8, PARAMETERS = 64, SHARED = 227 << 10, PLAIN_SHARED = 48 << 10, THREADS = 1024 };
enum { KERNEL = 0x4b45524e, LIBRARY = 0x4c494252, EVENT = 0x45564e54, STREAM = 0x5354524d, MAP = 0x544d4150 };

typedef struct { int magic; size_t size; char *image; } Library;
typedef struct {
  int magic, count, registers, most_threads, static_shared, cluster[3], dynamic[DEVICES], large_cluster;
  struct { unsigned offset, size; } parameters[PARAMETERS];
  char symbol[512];
} Kernel;
typedef struct { int magic, device, flags, recorded; double at; } Event;
typedef struct { int magic, device; } Stream;
typedef struct { int device; } Context;
typedef struct { uint64_t magic; void *address; unsigned rank, type; uint64_t sizes[5]; } Map;
typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  struct { int id; char pad[4]; unsigned value[16]; } *attributes;
  unsigned count;
} Launch;
typedef int (*OnLaunch)(const char *symbol, void **parameters, const unsigned *sizes, int count, const Launch *launch);

static pid_t owner;
static int lost, hanging, host_memory;
static char current_case[512];
static Context contexts[DEVICES] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static __thread Context *current;
static OnLaunch on_launch;
static struct Block { char *start; size_t size; int device; } *blocks;
static int block_count;
static size_t allocated;

/* What a test calls. */
void stub_on_launch(OnLaunch function) { on_launch = function; }
void stub_case(const char *name) { snprintf(current_case, sizeof current_case, "%s", name); }
void stub_host_memory(int yes) { host_memory = yes; }  /* tensors are the host's: addresses are not looked up */

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

static R wrong(const char *call, const char *format, ...) {
  char text[1024];
  int n = snprintf(text, sizeof text, "stub driver: %s: ", call);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + n, sizeof text - n - 1, format, arguments);
  va_end(arguments);
  strcat(text, "\n");
  fputs(text, stderr);
  const char *log = getenv("STUB_LOG");
  if (log) {
    int file = open(log, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file >= 0) {
      if (write(file, text, strlen(text)) < 0) perror("stub driver");
      close(file);
    }
  }
  return INVALID_VALUE;
}

#define READY(needs_context)                                             \
  do {                                                                   \
    if (owner == 0 || getpid() != owner) return NOT_INITIALIZED;         \
    if (lost) return ILLEGAL_ADDRESS;                                    \
    if ((needs_context) && !current) return INVALID_CONTEXT;             \
  } while (0)
#define CHECK(condition, ...)                                            \
  do {                                                                   \
    if (!(condition)) return wrong(__func__, __VA_ARGS__);               \
  } while (0)

static int readable(const void *address, size_t size) {
  char room[1024];
  struct iovec to = {room, size}, from = {(void *)address, size};
  return size <= sizeof room && process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)size;
}

static int aligned(const void *address, size_t to) { return (uintptr_t)address % to == 0; }

static int is_stream(const void *s) {
  return (uintptr_t)s <= 2 || (aligned(s, 4) && readable(s, sizeof(Stream)) && ((Stream *)s)->magic == STREAM);
}

static int inside(const void *address, uint64_t size) {
  for (int i = 0; i < block_count; i++)
    if ((char *)address >= blocks[i].start && (char *)address + size <= blocks[i].start + blocks[i].size)
      return !current || blocks[i].device == current->device;
  return host_memory;
}

static R waited(void) {
  while (hanging) pause();
  return lost ? ILLEGAL_ADDRESS : OK;
}

/* Devices and contexts. */

R cuInit(unsigned flags) {
  CHECK(flags == 0, "flags %u", flags);
  if (owner && getpid() != owner) return NOT_INITIALIZED;
  owner = getpid();
  return number("STUB_DEVICES", 1) ? OK : NO_DEVICE;
}

R cuDriverGetVersion(int *version) { *version = number("STUB_VERSION", 13000); return OK; }
R cuDeviceGetCount(int *count) { READY(0); *count = number("STUB_DEVICES", 1); return OK; }

R cuDeviceGet(int *device, int ordinal) {
  READY(0);
  if (ordinal < 0 || ordinal >= number("STUB_DEVICES", 1)) return INVALID_DEVICE;
  *device = ordinal;
  return OK;
}

R cuDeviceGetName(char *name, int length, int device) {
  READY(0);
  CHECK(name && length > 0, "no room for the name");
  snprintf(name, length, "NVIDIA H200");
  return OK;
}

R cuDeviceGetAttribute(int *value, int attribute, int device) {
  READY(0);
  switch (attribute) {
    case 1: *value = THREADS; return OK;
    case 16: *value = number("STUB_MULTIPROCESSORS", 132); return OK;
    case 75: *value = 9; return OK;
    case 76: *value = 0; return OK;
    case 97: *value = SHARED; return OK;
  }
  return wrong(__func__, "attribute %d is not known to the stub", attribute);
}

R cuCtxGetCurrent(Context **context) { READY(0); *context = current; return OK; }
R cuCtxGetDevice(int *device) { READY(1); *device = current->device; return OK; }

R cuCtxSetCurrent(Context *context) {
  READY(0);
  CHECK(!context || (context >= contexts && context < contexts + DEVICES), "%p is no context", (void *)context);
  current = context;
  return OK;
}

R cuDevicePrimaryCtxRetain(Context **context, int device) {
  READY(0);
  if (device < 0 || device >= number("STUB_DEVICES", 1)) return INVALID_DEVICE;
  *context = contexts + device;
  return OK;
}

R cuCtxSynchronize(void) { READY(1); return waited(); }

/* Libraries. A CUBIN is an ELF file; .nv.info.<kernel> says what a kernel takes. */

static uint64_t at(const char *image, size_t offset, int size) {
  uint64_t value = 0;
  memcpy(&value, image + offset, size);
  return value;
}

static void read_info(Kernel *k, const char *info, size_t size) {
  for (size_t i = 0; i + 4 <= size;) {
    int format = (unsigned char)info[i], attribute = (unsigned char)info[i + 1];
    unsigned value = at(info, i + 2, 2);
    const char *data = info + i + 4;
    i += 4 + (format == 4 ? value : 0);
    if (format != 4) continue;
    if (attribute == 0x17 && value == 12) {  /* EIATTR_KPARAM_INFO */
      unsigned ordinal = at(data, 4, 2);
      if (ordinal >= PARAMETERS) continue;
      k->parameters[ordinal].offset = at(data, 6, 2);
      k->parameters[ordinal].size = at(data, 8, 4) >> 18;
      if ((int)ordinal >= k->count) k->count = ordinal + 1;
    }
    if (attribute == 0x05) k->most_threads = at(data, 0, 4) * at(data, 4, 4) * at(data, 8, 4);
    if (attribute == 0x3d)
      for (int d = 0; d < 3; d++) k->cluster[d] = at(data, 4 * d, 4);
  }
}

R cuLibraryLoadData(Library **library, const char *image, void *o, void *ov, unsigned n, void *lo, void *lov, unsigned ln) {
  READY(0);
  CHECK(library && image, "no image");
  CHECK(n == 0 && ln == 0, "%u and %u options", n, ln);
  if (memcmp(image, "\177ELF", 4) || at(image, 18, 2) != 190) return INVALID_IMAGE;
  uint64_t table = at(image, 40, 8);
  unsigned each = at(image, 58, 2), sections = at(image, 60, 2);
  Library *made = calloc(1, sizeof *made);
  made->magic = LIBRARY;
  made->size = table + each * sections;
  for (unsigned i = 0; i < sections; i++) {
    size_t section = table + i * each;
    uint64_t end = at(image, section + 24, 8) + at(image, section + 32, 8);
    if (at(image, section + 4, 4) != 8 && end > made->size) made->size = end;
  }
  made->image = malloc(made->size);
  memcpy(made->image, image, made->size);  /* the caller's may go */
  *library = made;
  return OK;
}

R cuLibraryGetKernel(Kernel **kernel, Library *library, const char *name) {
  READY(0);
  CHECK(library && library->magic == LIBRARY, "no library");
  CHECK(name && *name, "no name");
  const char *image = library->image;
  uint64_t table = at(image, 40, 8);
  unsigned each = at(image, 58, 2), sections = at(image, 60, 2), names = at(image, 62, 2), found = 0;
  uint64_t text = at(image, table + names * each + 24, 8);
  Kernel *made = calloc(1, sizeof *made);
  made->magic = KERNEL;
  made->most_threads = THREADS;
  snprintf(made->symbol, sizeof made->symbol, "%s", name);
  for (unsigned i = 0; i < sections; i++) {
    size_t section = table + i * each;
    const char *own = image + text + at(image, section, 4);
    uint64_t start = at(image, section + 24, 8), size = at(image, section + 32, 8);
    if (!strncmp(own, ".nv.info.", 9) && !strcmp(own + 9, name)) read_info(made, image + start, size);
    if (!strncmp(own, ".nv.shared.", 11) && !strcmp(own + 11, name)) made->static_shared = size > 1024 ? size - 1024 : 0;  /* the first 1 KiB is the system's */
    if (!strncmp(own, ".text.", 6) && !strcmp(own + 6, name)) {
      found = 1;
      made->registers = at(image, section + 44, 4) >> 24;
    }
  }
  if (!found) return NOT_FOUND;
  *kernel = made;
  return OK;
}

R cuKernelSetAttribute(int attribute, int value, Kernel *k, int device) {
  READY(0);
  CHECK(k && k->magic == KERNEL, "no kernel");
  if (device < 0 || device >= number("STUB_DEVICES", 1)) return INVALID_DEVICE;
  if (attribute == 8) {
    CHECK(value >= 0 && value + k->static_shared <= SHARED, "%d bytes of shared memory", value);
    k->dynamic[device] = value;
  } else if (attribute == 14) {
    k->large_cluster = value;
  } else {
    return wrong(__func__, "attribute %d is not known to the stub", attribute);
  }
  return OK;
}

static R check_launch(const Launch *l, Kernel *k) {
  static const char *__func = "cuLaunchKernelEx";
#define LAUNCH(condition, ...) \
  do { if (!(condition)) return wrong(__func, __VA_ARGS__); } while (0)
  const char *s = k->symbol;
  LAUNCH(l->grid[0] && l->grid[0] < 1u << 31, "%s: grid %u", s, l->grid[0]);
  for (int d = 1; d < 3; d++) LAUNCH(l->grid[d] && l->grid[d] < 65536, "%s: grid[%d] %u", s, d, l->grid[d]);
  uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
  LAUNCH(threads && threads <= THREADS && l->block[2] <= 64, "%s: %lu threads", s, (unsigned long)threads);
  LAUNCH((int)threads <= k->most_threads, "%s: %lu threads, compiled for %d", s, (unsigned long)threads, k->most_threads);
  LAUNCH((threads + 31) / 32 * 32 * ((k->registers + 7) / 8 * 8) <= 65536, "%s: %d registers", s, k->registers);
  unsigned most = k->dynamic[current->device] > PLAIN_SHARED ? k->dynamic[current->device] : PLAIN_SHARED - k->static_shared;
  LAUNCH(l->shared <= most, "%s: %u bytes of shared memory, %u were asked for", s, l->shared, most);
  LAUNCH(is_stream(l->stream), "%s: %p is no stream", s, l->stream);
  LAUNCH(l->count == 0 || (l->attributes && aligned(l->attributes, 8)), "%s: attributes at %p", s, (void *)l->attributes);
  unsigned cluster[3] = {1, 1, 1};
  for (unsigned i = 0; i < l->count; i++) {
    if (l->attributes[i].id == 6) {  /* PROGRAMMATIC_STREAM_SERIALIZATION */
      LAUNCH(l->attributes[i].value[0] <= 1, "%s: a launch starts early, or not", s);
      continue;
    }
    LAUNCH(l->attributes[i].id == 4, "%s: attribute %d is not known to the stub", s, l->attributes[i].id);
    memcpy(cluster, l->attributes[i].value, sizeof cluster);
  }
  for (int d = 0; d < 3; d++) {
    LAUNCH(cluster[d] && l->grid[d] % cluster[d] == 0, "%s: grid[%d] %u in clusters of %u", s, d, l->grid[d], cluster[d]);
    LAUNCH(!k->cluster[0] || (int)cluster[d] == k->cluster[d], "%s: compiled for clusters of %d", s, k->cluster[d]);
  }
  LAUNCH(cluster[0] * cluster[1] * cluster[2] <= (k->large_cluster ? 16 : 8), "%s: the cluster is large", s);
  return OK;
}

static R check_parameters(const Kernel *k, void **parameters) {
  static const char *__func = "cuLaunchKernelEx";
  const char *s = k->symbol;
  LAUNCH(k->count == 0 || (parameters && aligned(parameters, 8)), "%s: parameters at %p", s, (void *)parameters);
  LAUNCH(k->count == 0 || readable(parameters, 8 * k->count), "%s: %d addresses cannot be read", s, k->count);
  for (int i = 0; i < k->count; i++) {
    unsigned size = k->parameters[i].size, align = size == 128 ? 64 : size >= 8 ? 8 : size;
    LAUNCH(parameters[i], "%s: parameter %d is missing", s, i);
    LAUNCH(aligned(parameters[i], align), "%s: parameter %d of %u bytes at %p", s, i, size, parameters[i]);
    LAUNCH(readable(parameters[i], size), "%s: %u bytes of parameter %d cannot be read", s, size, i);
    if (size != 128) continue;
    Map *map = parameters[i];
    LAUNCH(map->magic == MAP, "%s: parameter %d is no tensor map", s, i);
  }
  return OK;
}

static const char *fault_of(const char *symbol) {
  static char kind[32];
  const char *faults = getenv("STUB_FAULTS");
  while (faults && *faults) {
    char pattern[512];
    int n = 0;
    if (sscanf(faults, "%511[^=]=%31[^;]%n", pattern, kind, &n) < 2) return "";
    if (!fnmatch(pattern, symbol, 0) || (*current_case && !fnmatch(pattern, current_case, 0))) return kind;
    faults += n;
    if (*faults == ';') faults++;
  }
  return "";
}

R cuLaunchKernelEx(const Launch *l, Kernel *k, void **parameters, void **extra) {
  READY(1);
  CHECK(l && aligned(l, 8) && readable(l, sizeof *l), "no configuration");
  CHECK(k && k->magic == KERNEL, "no kernel");
  CHECK(!extra, "parameters are given in two ways");
  R found = check_launch(l, k);
  if (!found) found = check_parameters(k, parameters);
  if (found) return found;
  const char *fault = fault_of(k->symbol);
  if (!strcmp(fault, "segv")) raise(SIGSEGV);
  if (!strcmp(fault, "oom")) return OUT_OF_MEMORY;
  if (!strcmp(fault, "hang")) hanging = 1;
  if (!strcmp(fault, "lost")) lost = 1;
  if (*fault || !on_launch) return OK;
  unsigned sizes[PARAMETERS];
  for (int i = 0; i < k->count; i++) sizes[i] = k->parameters[i].size;
  return on_launch(k->symbol, parameters, sizes, k->count, l);
}

R cuTensorMapEncodeTiled(Map *map, unsigned type, unsigned rank, void *address, const uint64_t *sizes,
                         const uint64_t *strides, const unsigned *box, const unsigned *steps, unsigned interleave,
                         unsigned swizzle, unsigned promotion, unsigned fill) {
  static const int bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  READY(0);
  CHECK(map && aligned(map, 64), "the map at %p is not aligned to 64 bytes", (void *)map);
  CHECK(type < 13, "type %u", type);
  CHECK(rank >= 1 && rank <= 5, "rank %u", rank);
  CHECK(address && aligned(address, 16), "the tensor at %p is not aligned to 16 bytes", address);
  CHECK(interleave == 0 && swizzle <= 3 && promotion <= 3 && fill <= 1, "%u %u %u %u", interleave, swizzle, promotion, fill);
  uint64_t end = bytes[type];
  for (unsigned i = 0; i < rank; i++) {
    CHECK(sizes[i] && sizes[i] <= 1ull << 32, "size %u is %lu", i, (unsigned long)sizes[i]);
    CHECK(box[i] && box[i] <= 256, "box %u is %u", i, box[i]);
    CHECK(steps[i] && steps[i] <= 8, "step %u is %u", i, steps[i]);
    uint64_t stride = i ? strides[i - 1] : (uint64_t)bytes[type];
    CHECK(i == 0 || (stride % 16 == 0 && stride < 1ull << 40), "stride %u is %lu", i, (unsigned long)stride);
    end += (sizes[i] - 1) * stride;
  }
  unsigned inner = box[0] * bytes[type];
  CHECK(inner % 16 == 0, "a box's rows have %u bytes", inner);
  CHECK(swizzle == 0 || inner <= 16u << swizzle, "rows of %u bytes are swizzled over %u", inner, 16u << swizzle);
  CHECK(inside(address, end), "%lu bytes at %p are not one allocation's", (unsigned long)end, address);
  memset(map, 0, 128);
  *map = (Map){MAP, address, rank, type, {0}};
  memcpy(map->sizes, sizes, rank * sizeof *sizes);
  return OK;
}

/* Memory, streams, events. */

R cuMemAlloc_v2(uint64_t *address, size_t size) {
  READY(1);
  CHECK(size, "0 bytes");
  if (allocated + size > (size_t)number("STUB_MEMORY", 1l << 40)) return OUT_OF_MEMORY;
  void *made = NULL;
  if (posix_memalign(&made, 256, size)) return OUT_OF_MEMORY;
  memset(made, 0xff, size);
  allocated += size;
  blocks = realloc(blocks, (block_count + 1) * sizeof *blocks);
  blocks[block_count++] = (struct Block){made, size, current->device};
  *address = (uint64_t)(uintptr_t)made;
  return OK;
}

R cuMemFree_v2(uint64_t address) {
  READY(0);
  for (int i = 0; i < block_count; i++)
    if (blocks[i].start == (char *)(uintptr_t)address) {
      allocated -= blocks[i].size;
      free(blocks[i].start);
      blocks[i] = blocks[--block_count];
      return OK;
    }
  return wrong(__func__, "%p was not allocated", (void *)(uintptr_t)address);
}

R cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  READY(1);
  CHECK(from && inside((void *)(uintptr_t)to, size), "%zu bytes to %p", size, (void *)(uintptr_t)to);
  memcpy((void *)(uintptr_t)to, from, size);
  return waited();
}

R cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  READY(1);
  CHECK(to && inside((void *)(uintptr_t)from, size), "%zu bytes from %p", size, (void *)(uintptr_t)from);
  R status = waited();
  if (!status) memcpy(to, (void *)(uintptr_t)from, size);
  return status;
}

R cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream) {
  READY(1);
  CHECK(is_stream(stream), "%p is no stream", stream);
  CHECK(count && inside((void *)(uintptr_t)address, count), "%zu bytes at %p", count, (void *)(uintptr_t)address);
  memset((void *)(uintptr_t)address, value, count);
  return OK;
}

R cuMemHostAlloc(void **address, size_t size, unsigned flags) {
  READY(1);
  CHECK(size && flags <= 7, "%zu bytes, flags %u", size, flags);
  return posix_memalign(address, 4096, size) ? OUT_OF_MEMORY : OK;
}

R cuStreamCreate(Stream **stream, unsigned flags) {
  READY(1);
  CHECK(flags <= 1, "flags %u", flags);
  *stream = calloc(1, sizeof **stream);
  **stream = (Stream){STREAM, current->device};
  return OK;
}

R cuStreamIsCapturing(void *stream, int *status) {
  READY(1);
  CHECK(is_stream(stream) && status, "%p is no stream", stream);
  *status = 0;
  return OK;
}

R cuStreamSynchronize(void *stream) {
  READY(1);
  CHECK(is_stream(stream), "%p is no stream", stream);
  return waited();
}

R cuEventCreate(Event **event, unsigned flags) {
  READY(1);
  CHECK(flags <= 7, "flags %u", flags);
  *event = calloc(1, sizeof **event);
  **event = (Event){EVENT, current->device, flags, 0, 0};
  return OK;
}

R cuEventRecord(Event *event, void *stream) {
  struct timespec now;
  READY(1);
  CHECK(event && event->magic == EVENT, "no event");
  CHECK(is_stream(stream), "%p is no stream", stream);
  CHECK(event->device == current->device, "an event of GPU %d on GPU %d", event->device, current->device);
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->recorded = 1;
  event->at = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
  return OK;
}

R cuEventSynchronize(Event *event) {
  READY(0);
  CHECK(event && event->magic == EVENT && event->recorded, "no event that was recorded");
  return waited();
}

R cuEventElapsedTime_v2(float *milliseconds, Event *start, Event *end) {
  READY(0);
  CHECK(start && end && start->magic == EVENT && end->magic == EVENT, "no events");
  CHECK(start->recorded && end->recorded && !((start->flags | end->flags) & 2), "events that have no times");
  *milliseconds = end->at - start->at;
  return OK;
}

R cuEventDestroy_v2(Event *event) {
  READY(0);
  CHECK(event && event->magic == EVENT, "no event");
  event->magic = 0;
  free(event);
  return OK;
}

/* NVRTC asks for tables of tools, where there is a driver. */
R cuGetExportTable(const void **table, const void *id) {
  *table = NULL;
  return NOT_FOUND;
}

R cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  char name[256];
  void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  snprintf(name, sizeof name, "%s_v2", symbol);
  *function = self ? dlsym(self, name) : NULL;
  if (!*function) *function = self ? dlsym(self, symbol) : NULL;
  if (status) *status = *function ? 0 : 1;
  return OK;  /* as the driver: a function that is not there is NULL */
}
