/* Barriers in shared memory that count arrivals and bytes. Their state is kept beside the 8 bytes.
 * Source: PTX ISA 9.0, "Parallel Synchronization and Communication Instructions: mbarrier". */
#pragma once
#include <functional>

#include "sync.h"

namespace sim {

struct Mbarrier {
  bool valid = false;
  uint32_t expected = 0;
  int64_t pending = 0, bytes = 0;
  uint64_t phase = 0; /* of which so many have completed */
  uint32_t agent = 0, operations = 0;
  Gathering gathering;
  ClockRef completed; /* what a thread knows that has waited for the latest completed phase */
  std::vector<std::pair<Fiber *, uint32_t>> waiting; /* with the parity that each waits for */
  std::vector<std::function<void()>> postponed;      /* asynchronous operations that have not landed */
  std::unordered_map<uint32_t, uint64_t> waited;     /* by thread: how many phases it has seen completed */
  uint32_t owner = 0, owner_clock = 0;               /* who initialised it, when */
  bool visible = false;                              /* to the asynchronous proxy */
};

inline std::string describe_mbarriers(const Block &block) {
  std::string text;
  for (size_t i = 0; i < block.mbarriers.size(); i++) {
    const Mbarrier *m = block.mbarriers[i].get();
    if (!m || m->waiting.empty()) continue;
    text += "; the mbarrier at byte " + std::to_string(8 * i) + " lacks " + std::to_string(m->pending) +
            " arrivals and " + std::to_string(m->bytes) + " bytes in phase " + std::to_string(m->phase);
  }
  return text;
}

inline Block *block_of_address(Worker &w, const char *at) {
  for (Block &b : w.blocks)
    if (at >= b.shared && at < b.shared + w.run->shared_bytes) return &b;
  return nullptr;
}

/* The mbarrier at an address, or at its offset in another block; null after a report. */
inline Mbarrier *find_mbarrier(Worker &w, char *at, const tm_bounds *bounds, int block, uint32_t line) {
  Fiber &f = *w.current;
  const Place place = w.place(f, site_of_line(line));
  Block *home = block_of_address(w, at);
  if (w.checked && !is_reachable(w, access_of(f, place.site), {at, 8, bounds, true}, 8)) return nullptr;
  if (!home || reinterpret_cast<uintptr_t>(at) % 8) {
    w.report->add(kMbarrier, place, nullptr, "an mbarrier that is not in the block's shared memory, or not at a multiple of 8");
    return nullptr;
  }
  const size_t offset = size_t(at - home->shared);
  if (block >= int(w.blocks.size())) {
    w.report->add(kMbarrier, place, nullptr, "an mbarrier of block %d of a cluster of %zu", block, w.blocks.size());
    return nullptr;
  }
  if (block >= 0) home = &w.blocks[size_t(block)];
  if (home->mbarriers.size() <= offset / 8) home->mbarriers.resize(w.run->shared_bytes / 8 + 1);
  std::unique_ptr<Mbarrier> &m = home->mbarriers[offset / 8];
  if (!m) m = std::make_unique<Mbarrier>();
  if (w.checked) {
    /* Its users need an order after its initialisation, but none among themselves. */
    Access access = access_of(f, place.site);
    access.atomic = m->valid;
    if (m->valid && !check_access(w, access, {home->shared + offset, 8, &home->bounds[0], true}, 8)) return nullptr;
  }
  return m.get();
}

inline bool has_completed(const Mbarrier &m, uint32_t parity) { return (m.phase & 1) != (parity & 1); }

inline void see_completed(Worker &w, Mbarrier &m, Fiber &f) {
  if (!w.checked) return;
  m.waited[f.number] = m.phase;
  acquire(f, m.completed);
}

/* Completes the phase where nothing is pending. */
inline void settle(Worker &w, Mbarrier &m) {
  if (m.pending || m.bytes) return;
  m.phase++;
  m.pending = m.expected;
  if (w.checked) {
    if (m.completed) m.gathering.add(*m.completed);
    if (!m.gathering.empty()) m.completed = m.gathering.take();
  }
  std::vector<Fiber *> woken;
  auto &waiting = m.waiting;
  for (size_t i = 0; i < waiting.size();) {
    if (!has_completed(m, waiting[i].second)) {
      i++;
      continue;
    }
    see_completed(w, m, *waiting[i].first);
    woken.push_back(waiting[i].first);
    waiting.erase(waiting.begin() + long(i));
  }
  make_all_ready(w, woken);
}

inline void arrive(Worker &w, Mbarrier &m, int64_t arrivals, uint32_t line) {
  if (m.pending < arrivals) {
    w.report->add(kMbarrier, w.place(*w.current, site_of_line(line)), nullptr,
                  "more arrivals in phase %llu of an mbarrier than the %u it expects", (unsigned long long)m.phase,
                  m.expected);
    return;
  }
  m.pending -= arrivals;
  settle(w, m);
}

inline void land_postponed(Mbarrier &m) {
  while (!m.postponed.empty()) {
    std::vector<std::function<void()>> operations = std::move(m.postponed);
    m.postponed.clear();
    for (auto &operation : operations) operation();
  }
}

/* An operation that ends in an arrival at `m`: at once, or when somebody waits there. */
inline void postpone(Worker &w, Mbarrier &m, std::function<void()> operation) {
  m.postponed.push_back(std::move(operation));
  if (!w.run->late || !m.waiting.empty() || !w.checked) land_postponed(m);
}

inline void initialise(Worker &w, Mbarrier &m, char *at, const tm_bounds *bounds, uint32_t count, uint32_t line) {
  Fiber &f = *w.current;
  const Place place = w.place(f, site_of_line(line));
  if (count == 0 || count >= 1u << 20)
    w.report->add(kMbarrier, place, nullptr, "an mbarrier that expects %u arrivals", count);
  if (m.valid) w.report->add(kMbarrier, place, nullptr, "an mbarrier is initialised that has not been invalidated");
  const uint32_t agent = m.agent;
  m = Mbarrier{};
  m.valid = true;
  m.expected = count;
  m.pending = count;
  m.owner = f.number;
  m.owner_clock = f.own;
  if (!w.checked) return;
  m.agent = agent ? agent : w.new_agent(AgentKind::mbarrier, &f);
  check_access(w, access_of(f, place.site), {at, 8, bounds, true}, 8);
}

inline bool wait_for(Worker &w, Mbarrier &m, uint32_t parity, bool blocks, uint32_t line) {
  Fiber &f = *w.current;
  if (!has_completed(m, parity)) {
    auto seen = m.waited.find(f.number);
    if (w.checked && seen != m.waited.end() && m.phase >= seen->second + 2)
      w.report->add(kMbarrier, w.place(f, site_of_line(line)), nullptr,
                    "a wait for parity %u of an mbarrier, %llu phases of which completed since this thread last waited", parity,
                    (unsigned long long)(m.phase - seen->second));
    land_postponed(m);
    if (!has_completed(m, parity)) {
      if (!blocks) {
        give_way(w, "a test of an mbarrier", line);
        return false;
      }
      m.waiting.push_back({&f, parity});
      wait_here(w, Wait::mbarrier, "a wait for an mbarrier", line);
      return true;
    }
  }
  see_completed(w, m, f);
  return true;
}

}  // namespace sim

extern "C" {

TM_EXPORT tm_u32 tm_sim_mbarrier(tm_u32 step, void *at, const tm_bounds *bounds, tm_u32 value, int block, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Mbarrier *m = find_mbarrier(w, static_cast<char *>(at), bounds, block, line);
  if (!m) return 1;
  Fiber &f = *w.current;
  f.line = line;
  count(w, tm_kind_mbarrier);
  if (step == tm_mbarrier_inits) {
    initialise(w, *m, static_cast<char *>(at), bounds, value, line);
    return 1;
  }
  if (!m->valid) {
    w.report->add(kMbarrier, w.place(f, site_of_line(line)), nullptr, "an mbarrier is used that nothing has initialised");
    return 1;
  }
  switch (step) {
    case tm_mbarrier_invalidates: m->valid = false; return 1;
    case tm_mbarrier_expects: m->bytes += value; return 1;
    case tm_mbarrier_arrives_expecting: m->bytes += value; [[fallthrough]];
    case tm_mbarrier_arrives:
      if (w.checked) release_to(m->gathering, f);
      arrive(w, *m, 1, line);
      return 1;
    default: return wait_for(w, *m, value, step == tm_mbarrier_waits, line);
  }
}
}
