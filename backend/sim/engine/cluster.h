/* Fences, atomic operations, and the blocks of a cluster.
 * A fence before an atomic operation releases, one after it acquires: PTX ISA 9.0, "Release and Acquire Patterns". */
#pragma once
#include "mbarrier.h"

namespace sim {

inline ClockRef snapshot(Fiber &f) {
  Gathering gathering;
  release_to(gathering, f);
  return gathering.take();
}

/* The narrowest scope that holds a thread and who released. */
inline Scope scope_between(const Worker &w, const Fiber &f, const Released &r) {
  if (r.gang != w.gang) return Scope::gpu;
  return r.block == f.home->rank ? Scope::block : Scope::cluster;
}

inline void acquire_seen(Worker &w, Fiber &f, Scope scope) {
  std::vector<Released> beyond; /* reach of this fence: a wider one may follow */
  for (const Released &r : f.seen) {
    if (std::min(scope, r.scope) < scope_between(w, f, r)) {
      beyond.push_back(r);
      continue;
    }
    if (r.gang == w.gang) {
      acquire(f, r.clock);
      continue;
    }
    auto joined = std::make_shared<Clock>(*f.base);
    for (const auto &[further, known] : r.clock->foreign)
      if (further != w.gang) joined->join_foreign(further, known);
    joined->join_foreign(r.gang, r.clock);
    f.base = joined;
  }
  f.seen = std::move(beyond);
}

inline void fence_memory(Worker &w, Fiber &f, Scope scope) {
  acquire_seen(w, f, scope);
  f.fenced = snapshot(f);
  f.fenced_scope = scope;
}

inline void fence_proxy(Fiber &f) {
  auto fenced = std::make_shared<Clock>(*f.base);
  fenced->raise(f.number, f.own++);
  if (f.copies_agent) fenced->raise(f.copies_agent, f.copies_done);
  fenced->fence();
  f.base = fenced;
}

inline void synchronise_atomically(Worker &w, Fiber &f, const void *at) {
  auto known = w.released.find(at);
  if (known != w.released.end())
    for (const Released &r : known->second) f.seen.push_back(r);
  if (!f.fenced) return;
  auto &released = w.released[at];
  for (Released &r : released) {
    if (r.gang != w.gang || r.block != f.home->rank || r.scope != f.fenced_scope) continue;
    auto joined = std::make_shared<Clock>(*r.clock);
    joined->join(*f.fenced);
    r.clock = joined;
    return;
  }
  released.push_back({w.gang, f.home->rank, f.fenced_scope, f.fenced});
}

}  // namespace sim

extern "C" {

TM_EXPORT void tm_sim_fence(tm_u32 kind, tm_u32) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  count(w, tm_kind_fence);
  if (!w.checked) return;
  if (kind == tm_fences_proxy) return fence_proxy(f);
  if (kind != tm_fences_mbarrier_init)
    return fence_memory(w, f, kind == tm_fences_block ? Scope::block : kind == tm_fences_cluster ? Scope::cluster : Scope::gpu);
  for (auto &m : f.home->mbarriers)
    if (m && m->valid && m->owner == f.number) m->visible = true;
}

TM_EXPORT void *tm_sim_atomic(void *at, tm_u32 bytes, const tm_bounds *bounds, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  count(w, tm_kind_atomic);
  Access access = access_of(f, site_of_line(line));
  access.atomic = true;
  const Span span{static_cast<const char *>(at), bytes, bounds, true};
  if (w.checked && !is_reachable(w, access, span, bytes)) return w.scratch;
  /* Where the latest one changed nothing, as a try to take what another thread holds, others go first. */
  if (is_poll(f, at, bytes)) give_way(w, "an atomic operation", line);
  else note_change(w);
  if (!w.checked) return at;
  Region &region = *static_cast<Region *>(bounds->region);
  const uint64_t cell = uint64_t(span.at - region.base) >> region.shift;
  const bool empty = region.tracked && !region.initialised &&
                     (!region.cells[cell].gang || (region.shared && region.cells[cell].gang != w.gang));
  if (empty)
    w.report->add(kUninitialised, w.place(f, access.site), nullptr, "atomic %s that nothing has written",
                  describe(span).c_str());
  access = access_of(f, access.site);
  access.atomic = true;
  if (!check_access(w, access, span, bytes)) return w.scratch;
  if (w.counted) count_access(w, f, access.site, at, bytes, true, bounds);
  synchronise_atomically(w, f, at);
  return at;
}

TM_EXPORT void tm_sim_cluster_arrive(tm_u32 relaxed, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  f.line = line;
  count(w, tm_kind_cluster);
  if (f.cluster_phase != w.cluster_phase) {
    w.report->add(kDivergentBarrier, w.place(f, site_of_line(line)), nullptr,
                  "a thread arrives twice at the barrier of the cluster before it waits");
    stop_run(w);
  }
  f.cluster_phase++;
  if (w.checked && !relaxed) release_to(w.cluster.gathering, f);
  if (++w.cluster.arrived < w.fibers.size()) return;
  w.cluster.arrived = 0;
  w.cluster_phase++;
  if (w.checked) {
    if (w.cluster_clock) w.cluster.gathering.add(*w.cluster_clock);
    if (!w.cluster.gathering.empty()) w.cluster_clock = w.cluster.gathering.take();
    for (Fiber *waiting : w.cluster.waiting) acquire(*waiting, w.cluster_clock);
  }
  make_all_ready(w, w.cluster.waiting);
}

TM_EXPORT void tm_sim_cluster_wait(tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  f.line = line;
  if (f.cluster_phase == w.cluster_phase) {
    if (w.checked) acquire(f, w.cluster_clock);
    return;
  }
  w.cluster.waiting.push_back(&f);
  wait_here(w, Wait::cluster, "barrier of the cluster", line);
}

TM_EXPORT tm_u32 tm_sim_cluster_rank() { return sim::worker->current->home->rank; }

TM_EXPORT void *tm_sim_cluster_map(void *shared, const tm_bounds *bounds, tm_u32 block, const tm_bounds **there,
                                   tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  Block *from = block_of_address(w, static_cast<char *>(shared));
  if (!from || block >= w.blocks.size()) {
    w.report->add(kMisuse, w.place(f, site_of_line(line)), nullptr, "block %u of a cluster of %zu, or no shared memory",
                  block, w.blocks.size());
    stop_run(w);
  }
  Block &to = w.blocks[block];
  if (bounds) {
    const char *low = to.shared + (bounds->low - from->shared), *high = to.shared + (bounds->high - from->shared);
    *there = shared_bounds(to, low, high);
  }
  return to.shared + (static_cast<char *>(shared) - from->shared);
}

TM_EXPORT void tm_sim_registers(tm_u32 registers, tm_u32 more, tm_u32 line) {
  sim::count(*sim::worker, tm_kind_registers);
  sim::set_registers(*sim::worker, registers, more, line);
}
TM_EXPORT void tm_sim_count(tm_u32 kind) { sim::count(*sim::worker, static_cast<tm_kind>(kind)); }
}
