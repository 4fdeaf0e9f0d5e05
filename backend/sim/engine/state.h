/* The state of a running grid: fibers in warps in blocks in clusters, all owned by one worker. */
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "clock.h"
#include "fiber.h"
#include "report.h"

#define TM_EXPORT __attribute__((visibility("default")))

extern "C" {

struct tm_sim_region {
  char *base;
  tm_u64 bytes;
  tm_u32 granule, initialised, tracked; /* granule: bytes of one shadow cell, a power of two */
};

struct tm_sim_run {
  void (*entry)(const void *const *);
  const void *const *arguments;
  tm_sim_region *regions;
  const char *module; /* where the kernel's shared object is mapped: sites are offsets from it */
  double seconds; /* of processor time */
  tm_u64 steps;   /* that a run may take; 0: any number */
  tm_u32 region_count;
  tm_dim grid, cluster;
  tm_u32 threads, shared_bytes, shared_granule;
  tm_u32 seed, late, checked, counted, workers;
};

struct tm_sim_counters {
  tm_u64 instructions[tm_kinds];
  tm_u64 global_read, global_written, shared_read, shared_written, copied; /* bytes */
  tm_u64 global_requests, global_sectors, global_ideal;                    /* sectors of 32 bytes */
  tm_u64 shared_requests, shared_wavefronts, shared_ideal;
  tm_u64 tensor_operations; /* multiply-adds on tensor cores, times two */
  tm_u64 tensor_bytes;      /* the same, each as often as its left operand has bytes */
  tm_u64 switches, blocks, steps;
};
}

namespace sim {

struct Fiber;
struct Block;
struct Worker;

enum class State : uint8_t { unstarted, ready, waiting, ended };
enum class Wait : uint8_t { none, barrier, named_barrier, warp, warpgroup, mbarrier, cluster, polling };

/* One write or a list of reads of the bytes of a cell. Clocks and agents are those of the cluster `gang`. */
struct Reader {
  uint32_t gang, clock, site, next;
  uint32_t length;
  uint16_t agent, thread;
  bool atomic, writes; /* writes: an atomic write that another one followed without order */
};
struct Cell {
  uint32_t gang = 0, clock = 0, site = 0, readers = 0;
  uint16_t agent = 0, thread = 0;
  uint8_t atomic = 0, async_proxy = 0;
};

struct Region {
  Block *owner = nullptr; /* of shared memory */
  char *base = nullptr;
  uint64_t bytes = 0;
  uint32_t shift = 0;
  bool initialised = false, tracked = false, shared = false;
  std::vector<Cell> cells;
};

/* The knowledge that an atomic operation after a fence releases; its reach is the narrower of both fences' scopes. */
enum class Scope : uint8_t { block, cluster, gpu };
struct Released {
  uint32_t gang, block; /* of the thread: its cluster, and its block's rank in it */
  Scope scope;
  ClockRef clock;
};

struct Copy { /* a cp.async that has not landed */
  char *to;
  const char *from;
  uint32_t bytes, copied, group;
};

/* One instruction that several lanes execute together, while it waits for some of them. */
struct Instruction {
  const char *name;
  tm_kind kind;
  bool whole; /* all 32 lanes must take part */
  void (*run)(Worker &, void **operands, uint32_t mask, uint32_t line);
};
struct Meeting {
  const Instruction *instruction = nullptr;
  uint32_t mask = 0, arrived = 0, line = 0;
  void *operands[32];
};

/* The accesses of a warp's lanes at one place of the code, the n-th of each lane together. */
struct Request {
  uint32_t lanes = 0, bytes = 0;
  uint64_t at[32];
};
struct Trace {
  tm_kind kind;
  uint32_t seen[32] = {};
  std::vector<Request> requests;
};

struct Warp {
  Fiber *lanes[32] = {};
  uint32_t present = 0, ended = 0;
  uint32_t registers = 0, registers_line = 0; /* as setmaxnreg left them; 0: as launched */
  std::vector<Meeting> meetings;
  std::unordered_map<uint64_t, Trace> traces;
};

struct Barrier {
  uint32_t expected = 0, arrived = 0, line = 0;
  bool same_line = true;
  std::vector<Fiber *> waiting;
  Gathering gathering;
};

struct Mbarrier;

/* The wgmma of one warpgroup: what each of its 128 threads has given, and what has not been computed. */
struct Warpgroup {
  uint32_t arrived = 0, line = 0, agent = 0, issued = 0;
  void *operands[128];
  std::vector<Fiber *> waiting;
  std::deque<std::pair<uint32_t, std::function<void()>>> postponed;
};

struct Block {
  tm_dim index{};
  uint32_t rank = 0, ended = 0;
  std::vector<char> storage;
  char *shared = nullptr;
  Region memory;
  std::deque<tm_bounds> bounds;
  std::deque<std::string> names;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::vector<std::unique_ptr<Mbarrier>> mbarriers; /* by offset / 8 */
  Barrier barriers[16];

  Block();
  ~Block();
  Block(Block &&);
};

/* Numbered groups of asynchronous operations: tags count up, and all up to `done` are over for this thread. */
struct Groups {
  uint32_t open = 1, done = 0;
  std::deque<uint32_t> closed;

  void commit() { closed.push_back(open++); }
  void wait(uint32_t pending) {
    while (closed.size() > pending) {
      done = std::max(done, closed.front());
      closed.pop_front();
    }
  }
};

struct Fiber : tm_thread {
  Context context;
  char *stack = nullptr;
  Warp *warp = nullptr;
  Block *home = nullptr;
  uint32_t number = 0, lane = 0; /* number: within the cluster, and the agent of its accesses */
  State state = State::unstarted;
  Wait wait = Wait::none;
  uint32_t line = 0;
  const char *waits_in = "";

  ClockRef base;
  uint32_t own = 1;
  uint32_t copies_agent = 0, copies_done = 0, copies_open = 1; /* cp.async: all up to tag `done` have landed */
  uint32_t copies_last = 0, copies_given = 0, bulk_last = 0; /* tags: of the latest, and given to an mbarrier */
  std::deque<uint32_t> copy_groups;
  std::vector<Copy> copies;
  uint32_t bulk_reads = 0, bulk_writes = 0; /* agents of bulk stores: what they read, and what they write */
  Groups bulk_read, bulk_written;
  std::deque<std::pair<uint32_t, std::function<void()>>> bulk; /* stores that have not been made */
  uint32_t wgmma_issued = 0, wgmma_done = 0;
  uint32_t copies_line = 0, bulk_line = 0, wgmma_line = 0; /* of the latest of each */
  bool wgmma_fenced = false;
  std::deque<uint32_t> wgmma_groups;
  ClockRef fenced; /* what the latest fence lets an atomic operation after it release */
  Scope fenced_scope = Scope::block;
  const void *polled = nullptr; /* by the latest read or atomic operation, which found there: */
  char found[16];
  uint32_t polls = 0, polls_at = 0; /* reads that found the same, one after the other; the site of the latest */
  std::vector<Released> seen; /* by atomic operations, until a fence */
  uint32_t cluster_phase = 0;
};

enum class AgentKind : uint8_t { thread, copies, mbarrier, bulk, wgmma };
struct Agent {
  AgentKind kind;
  Fiber *owner;
};

/* Fibers that are ready, taken from the front; each is in it at most once. */
class Queue {
 public:
  void reset(size_t most) {
    size_t size = 1;
    while (size <= most) size *= 2;
    items_.resize(size);
    first_ = last_ = 0;
  }
  bool empty() const { return first_ == last_; }
  void push_front(Fiber *f) { items_[--first_ & (items_.size() - 1)] = f; }
  void push_back(Fiber *f) { items_[last_++ & (items_.size() - 1)] = f; }
  Fiber *pop() { return items_[first_++ & (items_.size() - 1)]; }

 private:
  std::vector<Fiber *> items_;
  size_t first_ = 0, last_ = 0;
};

/* Runs blocks one cluster after the other. One worker checks; several may share a grid that is only run. */
struct Worker {
  const tm_sim_run *run = nullptr;
  Report *report = nullptr;
  tm_sim_counters counters{};
  bool checked = false, counted = false, stopped = false;
  bool alone = true; /* no other worker runs blocks of the grid */

  Context main;
  Stacks stacks;
  std::vector<Fiber> fibers;
  std::vector<Block> blocks;
  std::vector<Agent> agents;
  Queue ready;
  std::vector<uint32_t> order;
  size_t started = 0;
  uint32_t live = 0, gang = 0;
  Fiber *current = nullptr;
  std::mt19937 random;
  double deadline = 0; /* of the processor time of its thread of the host */
  uint64_t idle = 0;   /* steps since anything has changed */

  Barrier cluster;
  uint32_t cluster_phase = 0;
  ClockRef cluster_clock;
  std::unordered_map<const void *, std::vector<Released>> released; /* by address */

  std::vector<Reader> readers{1};
  uint32_t free_reader = 0;
  std::vector<Region> regions;
  alignas(64) char scratch[64] = {};

  uint32_t threads() const { return run->threads; }
  Place place(const Fiber &f, uint32_t site) const { return {f.block, f.thread, site}; }
  uint32_t new_agent(AgentKind kind, Fiber *owner) {
    agents.push_back({kind, owner});
    return uint32_t(agents.size() - 1);
  }
};

extern __thread Worker *worker __attribute__((tls_model("initial-exec")));

/* The bounds of a part of a block's shared memory. */
inline const tm_bounds *shared_bounds(Block &b, const char *low, const char *high, uint32_t line = 0) {
  for (size_t i = line ? 1 : 0; i < b.bounds.size(); i++) /* the first, of all that there is, has no name */
    if (b.bounds[i].low == low && b.bounds[i].high == high) return &b.bounds[i];
  /* The line that declares the buffer stands for its name, which only the text tells. */
  b.names.push_back(line ? "@" + std::to_string(line) : "shared memory");
  b.bounds.push_back({const_cast<char *>(low), const_cast<char *>(high), &b.memory, b.names.back().c_str()});
  return &b.bounds.back();
}

inline uint32_t site_of_line(uint32_t line) { return kLineSite | line; }

}  // namespace sim
