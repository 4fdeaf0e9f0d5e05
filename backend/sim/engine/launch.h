/* Runs a grid: clusters in the order of the seed, each with fresh fibers, and returns the problems found. */
#pragma once
#include <atomic>
#include <mutex>
#include <thread>

#include "cluster.h"
#include "copies.h"
#include "products.h"
#include "tma.h"
#include "wgmma.h"

namespace sim {

__thread Worker *worker = nullptr;

Block::Block() = default;
Block::~Block() = default;
Block::Block(Block &&) = default;

inline void end_thread(Worker &w, Fiber &f) {
  f.state = State::ended;
  f.warp->ended |= 1u << f.lane;
  if (++f.home->ended == w.threads()) check_registers(w, f);
  w.live--;
  if (!w.checked) return;
  const auto place = [&](uint32_t line) { return w.place(f, site_of_line(line)); };
  if (f.copies_last > std::max(f.copies_done, f.copies_given))
    w.report->add(kAsyncCopy, place(f.copies_line), nullptr, "the thread ends before its cp.async has been waited for");
  if (f.bulk_last > f.bulk_read.done)
    w.report->add(kAsyncCopy, place(f.bulk_line), nullptr, "the thread ends before its bulk store has read shared memory");
  if (f.wgmma_issued > f.wgmma_done)
    w.report->add(kWgmma, place(f.wgmma_line), nullptr, "the thread ends before its wgmma has been waited for");
}

inline bool is_prepared(const Worker &w, size_t fibers, size_t blocks) {
  return !w.checked && w.fibers.size() == fibers && w.blocks.size() == blocks &&
         w.blocks[0].storage.size() >= w.run->shared_bytes + 1024;
}

inline void prepare(Worker &w) {
  const tm_sim_run &run = *w.run;
  const uint32_t size = run.cluster.x * run.cluster.y * run.cluster.z;
  if (is_prepared(w, size * run.threads, size)) {
    for (Fiber &f : w.fibers) f.grid_dim = run.grid;
    return;
  }
  w.fibers = std::vector<Fiber>(size * run.threads);
  w.blocks = std::vector<Block>(size);
  for (uint32_t rank = 0; rank < size; rank++) {
    Block &b = w.blocks[rank];
    b.rank = rank;
    b.storage.resize(run.shared_bytes + 1024);
    b.shared = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(b.storage.data()) + 1023) & ~uintptr_t(1023));
    b.warps = std::vector<Warp>((run.threads + 31) / 32);
    b.warpgroups = std::vector<Warpgroup>(run.threads / 128);
    if (!w.checked) continue;
    b.memory.owner = &b;
    b.memory.base = b.shared;
    b.memory.bytes = run.shared_bytes;
    b.memory.shift = __builtin_ctz(run.shared_granule);
    b.memory.shared = b.memory.tracked = true;
    b.memory.cells = std::vector<Cell>((run.shared_bytes + run.shared_granule - 1) / run.shared_granule);
    b.bounds.push_back({b.shared, b.shared + run.shared_bytes, &b.memory, "shared memory"});
  }
  for (uint32_t i = 0; i < w.fibers.size(); i++) {
    Fiber &f = w.fibers[i];
    Block &b = w.blocks[i / run.threads];
    const uint32_t t = i % run.threads;
    static_cast<tm_thread &>(f) = {{t, 0, 0}, b.index, {run.threads, 1, 1}, run.grid, b.shared};
    f.home = &b;
    f.warp = &b.warps[t / 32];
    f.lane = t % 32;
    f.number = i;
    f.warp->lanes[f.lane] = &f;
    f.warp->present |= 1u << f.lane;
    f.warp->meetings.reserve(32);
  }
  w.order.resize(w.fibers.size());
}

inline void begin_checks(Worker &w, Fiber &f, const ClockRef &nothing) {
  f.line = 0;
  f.waits_in = "";
  f.base = nothing;
  f.own = 1;
  f.copies_agent = f.copies_done = f.copies_last = f.copies_given = f.bulk_last = 0;
  f.copies_open = 1;
  f.copies.clear();
  f.copy_groups.clear();
  f.bulk_reads = f.bulk_writes = 0;
  f.bulk_read = f.bulk_written = Groups{};
  f.bulk.clear();
  f.wgmma_issued = f.wgmma_done = 0;
  f.wgmma_fenced = false;
  f.wgmma_groups.clear();
  f.fenced.reset();
  f.seen.clear();
  w.agents.push_back({AgentKind::thread, &f});
}

inline void run_cluster(Worker &w, uint32_t index, const tm_dim &first) {
  const tm_sim_run &run = *w.run;
  w.gang = index + 1;
  w.started = 0;
  w.idle = 0;
  w.ready.reset(w.fibers.size());
  w.agents.clear();
  w.cluster = Barrier{};
  w.cluster_phase = 0;
  w.cluster_clock.reset();
  w.live = uint32_t(w.fibers.size());
  const ClockRef nothing = w.checked ? std::make_shared<const Clock>() : nullptr;
  for (Block &b : w.blocks) {
    const tm_dim &c = run.cluster;
    b.index = {first.x + b.rank % c.x, first.y + b.rank / c.x % c.y, first.z + b.rank / c.x / c.y};
    b.ended = 0;
    if (!b.mbarriers.empty()) b.mbarriers.clear();
    for (Warp &warp : b.warps) warp.ended = warp.registers = 0;
    if (!w.checked) continue; /* a run that succeeds leaves the rest as it was */
    for (Barrier &barrier : b.barriers) barrier = Barrier{};
    for (Warpgroup &group : b.warpgroups) group = Warpgroup{};
    for (Warp &warp : b.warps) warp.meetings.clear();
    memset(b.shared, 0xff, run.shared_bytes);
  }
  for (Fiber &f : w.fibers) {
    f.block = f.home->index;
    f.state = State::unstarted;
    f.cluster_phase = 0;
    f.polled = nullptr;
    f.polls = 0;
    if (w.checked) begin_checks(w, f, nothing);
  }
  if (run.seed > 1) std::shuffle(w.order.begin(), w.order.end(), w.random);
  w.stacks.reclaim();
  w.counters.blocks += w.blocks.size();
  Fiber *next = take_next(w);
  switch_to(w, w.main, next);
  if (w.counted)
    for (Block &b : w.blocks)
      for (Warp &warp : b.warps) count_traces(w, warp);
}

inline void run_clusters(Worker &w, const std::vector<uint32_t> &order, std::atomic<size_t> &next,
                         std::atomic<bool> &stopped) {
  worker = &w;
  const tm_sim_run &run = *w.run;
  w.deadline = processor_seconds() + run.seconds;
  const tm_dim &c = run.cluster;
  const uint32_t across = run.grid.x / c.x, down = run.grid.y / c.y;
  prepare(w);
  for (uint32_t i = 0; i < w.order.size(); i++) w.order[i] = run.seed == 1 ? uint32_t(w.order.size()) - 1 - i : i;
  for (size_t i = next++; i < order.size() && !stopped; i = next++) {
    const uint32_t k = order[i];
    run_cluster(w, k, {k % across * c.x, k / across % down * c.y, k / across / down * c.z});
    if (w.stopped) stopped = true;
  }
  worker = nullptr;
  tm_self = nullptr;
}

inline std::vector<uint32_t> order_of_clusters(const tm_sim_run &run) {
  const tm_dim &c = run.cluster;
  std::vector<uint32_t> order(size_t(run.grid.x / c.x) * (run.grid.y / c.y) * (run.grid.z / c.z));
  for (uint32_t i = 0; i < order.size(); i++) order[i] = i;
  if (run.seed == 1) std::reverse(order.begin(), order.end());
  std::mt19937 random(run.seed);
  if (run.seed > 1) std::shuffle(order.begin(), order.end(), random);
  return order;
}

inline void set_regions(Worker &w) {
  const tm_sim_run &run = *w.run;
  w.regions = std::vector<Region>(run.region_count);
  for (uint32_t i = 0; i < run.region_count; i++) {
    const tm_sim_region &from = run.regions[i];
    Region &r = w.regions[i];
    r.base = from.base;
    r.bytes = from.bytes;
    r.shift = __builtin_ctz(from.granule);
    r.initialised = from.initialised;
    r.tracked = from.tracked;
    if (r.tracked) r.cells = std::vector<Cell>((from.bytes + from.granule - 1) / from.granule);
  }
}

/* Workers that have run without checks, with their stacks, for the next launch. */
class Pool {
 public:
  std::unique_ptr<Worker> take() {
    const std::lock_guard<std::mutex> guard(lock_);
    if (idle_.empty()) return std::make_unique<Worker>();
    std::unique_ptr<Worker> w = std::move(idle_.back());
    idle_.pop_back();
    return w;
  }
  void give(std::unique_ptr<Worker> w) {
    if (w->checked || w->stopped) return;
    const std::lock_guard<std::mutex> guard(lock_);
    if (idle_.size() < 16) idle_.push_back(std::move(w));
  }

 private:
  std::mutex lock_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

inline Pool &pool() {
  static Pool *workers = new Pool; /* never destroyed: a run may outlive static objects at the end of the process */
  return *workers;
}

inline void add_counters(tm_sim_counters &to, const tm_sim_counters &from) {
  tm_u64 *t = reinterpret_cast<tm_u64 *>(&to);
  const tm_u64 *f = reinterpret_cast<const tm_u64 *>(&from);
  for (size_t i = 0; i < sizeof to / sizeof *t; i++) t[i] += f[i];
}

}  // namespace sim

extern "C" {

__thread tm_thread *tm_self = nullptr;

/* Runs the grid; returns the number of problems, of which up to `most` are written. Bounds name their region by its
 * number plus one, which is replaced here by the region. */
TM_EXPORT tm_u32 tm_sim_run_grid(const tm_sim_run *run, tm_bounds *bounds,
                                                              tm_u32 bounds_count, tm_sim_problem *problems,
                                                              tm_u32 most, tm_sim_counters *counters) {
  using namespace sim;
  Report report;
  const std::vector<uint32_t> order = order_of_clusters(*run);
  std::atomic<size_t> next{0};
  std::atomic<bool> stopped{false};
  /* Another thread of the host is worth while only for so many fibers. */
  const bool small = order.size() * run->threads < 8192;
  const bool alone = run->checked || run->counted || small;
  const uint32_t count = alone ? 1 : std::max(1u, std::min(run->workers, uint32_t(order.size())));
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Report> reports(count);
  for (uint32_t i = 0; i < count; i++) {
    workers.push_back(run->checked ? std::make_unique<Worker>() : pool().take());
    Worker &w = *workers.back();
    w.counters = {};
    w.run = run;
    w.report = &reports[i];
    w.checked = run->checked;
    w.counted = run->counted;
    w.random.seed(run->seed + i);
    w.alone = count == 1;
  }
  if (run->checked) {
    set_regions(*workers[0]);
    for (uint32_t i = 0; i < bounds_count; i++)
      bounds[i].region = &workers[0]->regions[reinterpret_cast<uintptr_t>(bounds[i].region) - 1];
  }
  std::vector<std::thread> helpers;
  for (uint32_t i = 1; i < count; i++)
    helpers.emplace_back([&, i] { run_clusters(*workers[i], order, next, stopped); });
  run_clusters(*workers[0], order, next, stopped);
  for (std::thread &helper : helpers) helper.join();
  *counters = {};
  tm_u32 found = 0;
  for (uint32_t i = 0; i < count; i++) {
    add_counters(*counters, workers[i]->counters);
    for (const tm_sim_problem &p : reports[i].problems())
      if (found < most) problems[found++] = p;
    pool().give(std::move(workers[i]));
  }
  return found;
}

TM_EXPORT const tm_bounds *tm_sim_shared_bounds(tm_u64 offset, tm_u64 bytes,
                                                                             tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Block &b = *w.current->home;
  char *low = b.shared + offset, *end = b.shared + w.run->shared_bytes;
  char *high = bytes == ~0ull ? end : low + bytes;
  if (low > end || high > end) {
    w.report->add(kOutOfBounds, w.place(*w.current, site_of_line(line)), nullptr,
                  "a shared buffer at byte %llu, in a block that has %u bytes of shared memory", offset,
                  w.run->shared_bytes);
    return &b.bounds[0];
  }
  return shared_bounds(b, low, high, line);
}

static inline tm_u32 site_of_return(const void *address, tm_u32 line) {
  if (line) return sim::site_of_line(line);
  return tm_u32(static_cast<const char *>(address) - sim::worker->run->module) - 1;
}

TM_EXPORT const void *tm_sim_read(const void *at, tm_u32 bytes, const tm_bounds *bounds,
                                                               tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  const Access access = access_of(*w.current, site_of_return(__builtin_return_address(0), line));
  const bool good = check_access(w, access, {static_cast<const char *>(at), bytes, bounds, false}, bytes);
  if (good && w.counted) count_access(w, *w.current, access.site, at, bytes, false, bounds);
  if (good) note_read_by(w, *w.current, at, bytes, access.site);
  if (good) return at;
  memset(w.scratch, 0, sizeof w.scratch);
  return w.scratch;
}

TM_EXPORT void *tm_sim_write(void *at, tm_u32 bytes, const tm_bounds *bounds,
                                                          tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  const Access access = access_of(*w.current, site_of_return(__builtin_return_address(0), line));
  const bool good = check_access(w, access, {static_cast<const char *>(at), bytes, bounds, true}, bytes);
  if (good && w.counted) count_access(w, *w.current, access.site, at, bytes, true, bounds);
  return good ? at : w.scratch;
}
}
