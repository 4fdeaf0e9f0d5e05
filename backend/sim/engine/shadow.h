/* Shadow memory: for every granule of checked memory the last write and the reads since, so that each new access can be
 * compared with what its thread knows. Values are not compared: two threads that write the same value race, too. */
#pragma once
#include "schedule.h"

namespace sim {

/* The agent of an access, its own time, and the clock that it knows. */
struct Access {
  Fiber *by;
  uint32_t agent, clock, site;
  bool atomic = false, async_proxy = false;
};

inline Access access_of(Fiber &f, uint32_t site) { return {&f, f.number, f.own, site}; }

/* True if an access of this cluster happened before the current action of `f`. */
inline bool happened_before(const Fiber &f, uint32_t agent, uint32_t clock) {
  if (agent == f.number) return true;
  if (f.copies_agent && agent == f.copies_agent) return f.copies_done >= clock;
  return f.base->of(agent) >= clock;
}

inline bool happened_before(const Worker &w, const Fiber &f, uint32_t gang, uint32_t agent, uint32_t clock) {
  if (gang == w.gang) return happened_before(f, agent, clock);
  auto known = f.base->foreign.find(gang);
  return known != f.base->foreign.end() && known->second->of(agent) >= clock;
}

inline Place place_of(const Worker &w, uint32_t gang, uint32_t thread, uint32_t site) {
  const tm_dim &g = w.run->grid, &c = w.run->cluster;
  const uint32_t size = w.run->threads, rank = thread / size, index = gang - 1;
  const uint32_t across = g.x / c.x, down = g.y / c.y;
  Place p;
  p.block = {index % across * c.x + rank % c.x, index / across % down * c.y + rank / c.x % c.y,
             index / across / down * c.z + rank / c.x / c.y};
  p.thread = {thread % size, 0, 0};
  p.site = site;
  return p;
}

struct Span {
  const char *at;
  uint32_t bytes;
  const tm_bounds *bounds;
  bool write;
};

inline std::string describe(const Span &s) {
  char text[120];
  snprintf(text, sizeof text, "%s of %u byte%s at byte %lld of %s", s.write ? "write" : "read", s.bytes,
           s.bytes == 1 ? "" : "s", (long long)(s.at - s.bounds->low), s.bounds->name);
  return text;
}

inline void report_async(Worker &w, const Access &a, const Span &s, const Place &other, uint32_t agent,
                         uint32_t clock, const char *touched) {
  const Agent &unit = w.agents[agent];
  const char *why = "nothing has waited for it";
  if (unit.kind == AgentKind::copies) {
    const Fiber &owner = *unit.owner;
    if (clock == owner.copies_open) why = "no commit has put it into a group";
    else if (owner.copies_done >= clock) why = "its thread has waited for it, but no barrier lies between";
    else why = "its thread has not waited for its group";
  } else if (unit.kind == AgentKind::mbarrier) {
    why = "this thread has not waited for the phase of the mbarrier that it completes";
  } else if (unit.kind == AgentKind::bulk) {
    why = "nothing has waited for its bulk group";
  } else if (unit.kind == AgentKind::wgmma) {
    why = "this thread has not waited for its wgmma group";
  }
  w.report->add(unit.kind == AgentKind::wgmma ? kWgmma : kAsyncCopy, w.place(*a.by, a.site), &other,
                "%s that an asynchronous copy or product %s: %s", describe(s).c_str(), touched, why);
}

inline void report_race(Worker &w, const Access &a, const Span &s, uint32_t gang, uint32_t agent, uint32_t thread,
                        uint32_t clock, uint32_t site, bool other_writes) {
  const Place other = place_of(w, gang, thread, site);
  if (gang == w.gang && agent >= w.fibers.size())
    return report_async(w, a, s, other, agent, clock, other_writes ? "writes" : "reads");
  const char *what = other_writes ? "writes" : "reads";
  if (gang != w.gang)
    w.report->add(kBlockRace, w.place(*a.by, a.site), &other, "%s that another block %s", describe(s).c_str(), what);
  else
    w.report->add(kRace, w.place(*a.by, a.site), &other, "%s that another thread %s with no barrier between",
                  describe(s).c_str(), what);
}

inline void free_readers(Worker &w, Cell &cell) {
  while (cell.readers) {
    const uint32_t next = w.readers[cell.readers].next;
    w.readers[cell.readers].next = w.free_reader;
    w.free_reader = cell.readers;
    cell.readers = next;
  }
}

/* Forgets the reads that a write after this access cannot race with unless it races with this access, too. */
inline void prune_readers(Worker &w, Cell &cell, const Access &a) {
  uint32_t *link = &cell.readers, others = 0, length = 0;
  while (*link) {
    Reader &r = w.readers[*link];
    const bool foreign = r.gang != w.gang;
    const bool drop = foreign ? ++others > 2 : r.agent == a.agent || happened_before(*a.by, r.agent, r.clock);
    if (drop) {
      const uint32_t dropped = *link;
      *link = r.next;
      r.next = w.free_reader;
      w.free_reader = dropped;
    } else {
      length++;
      link = &r.next;
    }
  }
  for (uint32_t i = cell.readers; i; i = w.readers[i].next) w.readers[i].length = length--;
}

inline uint32_t new_reader(Worker &w) {
  const uint32_t fresh = w.free_reader;
  if (!fresh) {
    w.readers.emplace_back();
    return uint32_t(w.readers.size() - 1);
  }
  w.free_reader = w.readers[fresh].next;
  return fresh;
}

inline void note_reader(Worker &w, Cell &cell, const Access &a) {
  if (cell.readers) {
    Reader &head = w.readers[cell.readers];
    if (head.gang == w.gang && head.agent == a.agent && !head.writes) {
      head.clock = a.clock;
      head.site = a.site;
      head.atomic &= a.atomic;
      return;
    }
    const bool stale = head.gang != w.gang || happened_before(*a.by, head.agent, head.clock);
    if (stale || head.length > 2 * w.fibers.size()) prune_readers(w, cell, a);
  }
  const uint32_t fresh = new_reader(w);
  const uint32_t length = cell.readers ? w.readers[cell.readers].length + 1 : 1;
  w.readers[fresh] = {w.gang, a.clock, a.site, cell.readers, length, uint16_t(a.agent), uint16_t(a.by->number),
                      a.atomic, false};
  cell.readers = fresh;
}

/* Keeps the last write beside an atomic one that follows it without order: a plain access may race with either. */
inline void note_atomic_write(Worker &w, Cell &cell) {
  const uint32_t length = cell.readers ? w.readers[cell.readers].length + 1 : 1;
  if (length > 2 * w.fibers.size()) return;
  const uint32_t fresh = new_reader(w);
  w.readers[fresh] = {w.gang, cell.clock, cell.site, cell.readers, length, cell.agent, cell.thread, true, true};
  w.readers[fresh].gang = cell.gang;
  cell.readers = fresh;
}

inline void check_atomic_writes(Worker &w, const Cell &cell, const Access &a, const Span &s) {
  for (uint32_t j = cell.readers; j; j = w.readers[j].next) {
    const Reader &r = w.readers[j];
    if (!r.writes || happened_before(w, *a.by, r.gang, r.agent, r.clock)) continue;
    return report_race(w, a, s, r.gang, r.agent, r.thread, r.clock, r.site, true);
  }
}

/* True if the access must be ordered after the cell's last write and is not. */
inline bool conflicts_with_write(Worker &w, const Cell &cell, const Access &a) {
  if (!cell.gang || (a.atomic && cell.atomic)) return false;
  return !happened_before(w, *a.by, cell.gang, cell.agent, cell.clock);
}

/* A generic write that the asynchronous proxy may not see yet, because a fence is missing. */
inline bool lacks_fence(Worker &w, const Cell &cell, const Access &a) {
  if (!a.async_proxy || cell.async_proxy || !cell.gang || cell.gang != w.gang) return false;
  return a.by->base->fenced_of(cell.agent) < cell.clock;
}

inline void report_proxy(Worker &w, const Cell &cell, const Access &a, const Span &s) {
  const Place other = place_of(w, cell.gang, cell.thread, cell.site);
  w.report->add(kProxy, w.place(*a.by, a.site), &other,
                "%s by the asynchronous proxy, after an ordinary write without fence.proxy.async between",
                describe(s).c_str());
}

inline void forget_old(Worker &w, Region &region, Cell &cell) {
  if (!region.shared || cell.gang == w.gang || !(cell.gang || cell.readers)) return;
  free_readers(w, cell);
  cell = Cell{};
}

inline void note_read(Worker &w, Region &region, const Access &a, const Span &s) {
  const uint64_t first = (s.at - region.base) >> region.shift;
  const uint64_t last = (s.at + s.bytes - 1 - region.base) >> region.shift;
  for (uint64_t i = first; i <= last; i++) {
    Cell &cell = region.cells[i];
    forget_old(w, region, cell);
    if (!cell.gang && !region.initialised) {
      w.report->add(kUninitialised, w.place(*a.by, a.site), nullptr, "%s that nothing has written",
                    describe(s).c_str());
      return;
    }
    if (conflicts_with_write(w, cell, a))
      report_race(w, a, s, cell.gang, cell.agent, cell.thread, cell.clock, cell.site, true);
    else if (lacks_fence(w, cell, a))
      report_proxy(w, cell, a, s);
    else if (cell.atomic && !a.atomic)
      check_atomic_writes(w, cell, a, s);
    note_reader(w, cell, a);
  }
}

inline void note_write(Worker &w, Region &region, const Access &a, const Span &s) {
  const uint64_t first = (s.at - region.base) >> region.shift;
  const uint64_t last = (s.at + s.bytes - 1 - region.base) >> region.shift;
  for (uint64_t i = first; i <= last; i++) {
    Cell &cell = region.cells[i];
    forget_old(w, region, cell);
    if (conflicts_with_write(w, cell, a))
      report_race(w, a, s, cell.gang, cell.agent, cell.thread, cell.clock, cell.site, true);
    else if (lacks_fence(w, cell, a))
      report_proxy(w, cell, a, s);
    for (uint32_t j = cell.readers; j; j = w.readers[j].next) {
      const Reader &r = w.readers[j];
      if ((a.atomic && r.atomic) || happened_before(w, *a.by, r.gang, r.agent, r.clock)) continue;
      report_race(w, a, s, r.gang, r.agent, r.thread, r.clock, r.site, r.writes);
      break;
    }
    if (a.atomic && cell.atomic) {
      if (cell.agent != a.agent || cell.gang != w.gang) note_atomic_write(w, cell);
    } else {
      free_readers(w, cell);
    }
    cell.gang = w.gang;
    cell.clock = a.clock;
    cell.site = a.site;
    cell.agent = uint16_t(a.agent);
    cell.thread = uint16_t(a.by->number);
    cell.atomic = a.atomic;
    cell.async_proxy = a.async_proxy;
  }
}

/* Bounds and alignment; false after a report. */
inline bool is_reachable(Worker &w, const Access &a, const Span &s, uint32_t alignment) {
  if (!s.bounds) {
    w.report->add(kMisuse, w.place(*a.by, a.site), nullptr, "an access through a pointer that was never set");
    return false;
  }
  if (s.at < s.bounds->low || s.at + s.bytes > s.bounds->high) {
    w.report->add(kOutOfBounds, w.place(*a.by, a.site), nullptr, "%s, which has %lld bytes", describe(s).c_str(),
                  (long long)(s.bounds->high - s.bounds->low));
    return false;
  }
  if (reinterpret_cast<uintptr_t>(s.at) % alignment) {
    w.report->add(kMisaligned, w.place(*a.by, a.site), nullptr, "%s, which is not a multiple of %u",
                  describe(s).c_str(), alignment);
    return false;
  }
  return true;
}

/* Checks one access and notes it; false when the bytes must not be touched. */
inline bool check_access(Worker &w, const Access &a, const Span &s, uint32_t alignment) {
  count_step(w, a.site);
  if (!is_reachable(w, a, s, alignment)) return false;
  if (s.write && !a.atomic) note_change(w);
  Region &region = *static_cast<Region *>(s.bounds->region);
  if (region.shared && region.owner->ended == w.threads()) {
    w.report->add(kMisuse, w.place(*a.by, a.site), nullptr, "%s of a block that has ended", describe(s).c_str());
    return false;
  }
  if (!region.tracked) return true;
  if (s.write) note_write(w, region, a, s);
  else note_read(w, region, a, s);
  return true;
}

}  // namespace sim
