/* Barriers of a block and of a warp, and instructions that lanes execute together. */
#pragma once
#include "counting.h"

namespace sim {

/* A thread's accesses so far become visible to every thread that joins the gathered clock. */
inline void release_to(Gathering &gathering, Fiber &f) {
  gathering.add(f.base, f.number, f.own, f.copies_agent, f.copies_done);
  f.own++;
}

inline void acquire(Fiber &f, const ClockRef &clock) {
  if (!clock || clock == f.base) return;
  auto joined = std::make_shared<Clock>(*f.base);
  joined->join(*clock);
  f.base = joined;
}

/* Registers of a thread when a kernel that uses setmaxnreg starts: as many as all threads of its block can have. */
inline uint32_t launched_registers(const Worker &w) { return std::min(248u, 65536 / w.threads() / 8 * 8); }

inline void set_registers(Worker &w, uint32_t registers, bool more, uint32_t line) {
  Fiber &f = *w.current;
  Warp &warp = *f.warp;
  const uint32_t before = warp.registers ? warp.registers : launched_registers(w);
  if (registers != before && more != (registers > before) && warp.registers_line != line)
    w.report->add(kMisuse, w.place(f, site_of_line(line)), nullptr, "setmaxnreg to %s than the %u registers there are: %u",
                  more ? "more" : "fewer", before, registers);
  warp.registers = registers;
  warp.registers_line = line;
}

/* A warp waits for registers until others have released enough; their sum never changes. */
inline void check_registers(Worker &w, Fiber &last) {
  const uint32_t launched = launched_registers(w);
  uint64_t all = 0, line = 0, warps = 0;
  for (const Warp &warp : last.home->warps) {
    if (!warp.present) continue;
    all += warp.registers ? warp.registers : launched;
    warps++;
    if (warp.registers > launched) line = warp.registers_line;
  }
  if (all > launched * warps)
    w.report->add(kDeadlock, w.place(last, site_of_line(uint32_t(line))), nullptr,
                  "setmaxnreg waits for registers that no warp gives back: %llu for each lane of %llu warps of %u",
                  (unsigned long long)all, (unsigned long long)warps, launched);
}

inline void open_barrier(Worker &w, Barrier &b, const char *name) {
  Fiber &last = *w.current;
  b.arrived = 0;
  if (!b.same_line && w.checked) {
    for (Fiber *f : b.waiting) {
      if (f->line == last.line) continue;
      const Place other = w.place(*f, site_of_line(f->line));
      w.report->add(kDivergentBarrier, w.place(last, site_of_line(last.line)), &other,
                    "threads of one block meet in different %ss", name);
      break;
    }
  }
  b.same_line = true;
  if (w.checked) {
    const ClockRef clock = b.gathering.take();
    for (Fiber *f : b.waiting) f->base = clock;
    last.base = clock;
    b.waiting.push_back(&last); /* so that the order of the seed is that of all of them */
  }
  make_all_ready(w, b.waiting);
  if (!w.checked) return;
  Fiber *next = take_next(w);
  if (next != &last) switch_to(w, last.context, next);
}

inline void meet_at(Worker &w, Barrier &b, Wait wait, const char *name, uint32_t expected, uint32_t line) {
  Fiber &f = *w.current;
  f.line = line;
  if (w.checked) release_to(b.gathering, f);
  if (b.arrived++ == 0) b.line = line;
  b.same_line &= b.line == line || wait != Wait::barrier; /* named barriers are for threads that do different things */
  if (b.arrived == expected) return open_barrier(w, b, name);
  b.waiting.push_back(&f);
  wait_here(w, wait, name, line);
}

/* Runs an instruction once all lanes of the mask have come to it. Masks that share no lane do not disturb each other. */
inline void meet_in_warp(Worker &w, const Instruction &instruction, void *operands, uint32_t mask, uint32_t line) {
  Fiber &f = *w.current;
  Warp &warp = *f.warp;
  f.line = line;
  const uint32_t bit = 1u << f.lane;
  if (!(mask & bit)) {
    w.report->add(kCollective, w.place(f, site_of_line(line)), nullptr,
                  "%s by lane %u, which its mask 0x%08x leaves out", instruction.name, f.lane, mask);
    stop_run(w);
  }
  if (!instruction.whole) mask &= warp.present;
  Meeting *meeting = nullptr, *unused = nullptr;
  for (Meeting &m : warp.meetings) {
    if (!m.instruction) unused = &m;
    else if (m.mask & mask) meeting = &m;
  }
  if (!meeting) {
    if (!unused) {
      warp.meetings.emplace_back();
      unused = &warp.meetings.back();
    }
    meeting = unused;
    meeting->instruction = &instruction;
    meeting->mask = mask;
    meeting->arrived = 0;
    meeting->line = line;
  } else if (meeting->mask != mask || meeting->instruction != &instruction || meeting->line != line) {
    Place other = w.place(f, site_of_line(meeting->line));
    for (uint32_t lane = 0; lane < 32; lane++)
      if (meeting->arrived >> lane & 1) other.thread = warp.lanes[lane]->thread;
    w.report->add(kCollective, w.place(f, site_of_line(line)), &other,
                  "lanes of one warp execute %s and %s (masks 0x%08x and 0x%08x) together", instruction.name,
                  meeting->instruction->name, mask, meeting->mask);
    stop_run(w);
  }
  meeting->operands[f.lane] = operands;
  meeting->arrived |= bit;
  if (meeting->arrived != mask) {
    const uint32_t wanted = mask & (warp.ended | ~warp.present);
    if (wanted) {
      w.report->add(kCollective, w.place(f, site_of_line(line)), nullptr, "%s waits for lanes 0x%08x, which %s",
                    instruction.name, wanted, wanted & warp.ended ? "have ended" : "do not exist");
      stop_run(w);
    }
    return wait_here(w, Wait::warp, instruction.name, line);
  }
  meeting->instruction = nullptr;
  count(w, instruction.kind);
  void *all[32];
  memcpy(all, meeting->operands, sizeof all);
  instruction.run(w, all, mask, line);
  for (uint32_t i = 0; i < 32; i++) {
    const uint32_t lane = w.run->seed == 1 ? i : 31 - i;
    if ((mask >> lane & 1) && lane != f.lane) make_ready(w, warp.lanes[lane]);
  }
}

inline void join_warp(Worker &w, void **operands, uint32_t mask, uint32_t) {
  if (!w.checked) return;
  Gathering gathering;
  for (uint32_t lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) release_to(gathering, *static_cast<Fiber *>(operands[lane]));
  const ClockRef clock = gathering.take();
  for (uint32_t lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) static_cast<Fiber *>(operands[lane])->base = clock;
}

inline const Instruction kWarpSync = {"a warp barrier", tm_kind_warp_sync, false, join_warp};

}  // namespace sim

extern "C" {

inline void tm_sim_barrier_of(sim::Worker &w, tm_u32 line) {
  sim::Fiber &f = *w.current;
  if (f.lane == 0 && f.number % w.threads() == 0) sim::count(w, tm_kind_barrier);
  sim::meet_at(w, f.home->barriers[0], sim::Wait::barrier, "barrier", w.threads(), line);
}

TM_EXPORT void tm_sim_barrier(tm_u32 line) { tm_sim_barrier_of(*sim::worker, line); }

TM_EXPORT void tm_sim_warp_sync(tm_u32 mask, tm_u32 line) {
  sim::Worker &w = *sim::worker;
  sim::meet_in_warp(w, sim::kWarpSync, w.current, mask, line);
}

TM_EXPORT void tm_sim_named_barrier(tm_u32 id, tm_u32 threads, tm_u32 waits,
                                                                 tm_u32 line) {
  sim::Worker &w = *sim::worker;
  sim::Fiber &f = *w.current;
  if (id > 15 || threads % 32 || threads == 0 || threads > w.threads()) {
    w.report->add(sim::kMisuse, w.place(f, sim::site_of_line(line)), nullptr,
                  "named barrier %u for %u threads: ids are 0 to 15, threads a multiple of 32 of the block's %u", id,
                  threads, w.threads());
    sim::stop_run(w);
  }
  if (f.lane == 0) sim::count(w, tm_kind_named_barrier);
  sim::Barrier &b = f.home->barriers[id];
  if (b.arrived && b.expected != threads) {
    w.report->add(sim::kDivergentBarrier, w.place(f, sim::site_of_line(line)), nullptr,
                  "named barrier %u is used for %u and for %u threads at once", id, b.expected, threads);
    sim::stop_run(w);
  }
  b.expected = threads;
  if (waits) return sim::meet_at(w, b, sim::Wait::named_barrier, "named barrier", threads, line);
  f.line = line;
  if (w.checked) sim::release_to(b.gathering, f);
  if (++b.arrived == threads) {
    /* The last one does not wait: those who did go on without it. */
    b.arrived = 0;
    b.same_line = true;
    if (w.checked) {
      const sim::ClockRef clock = b.gathering.take();
      for (sim::Fiber *waiting : b.waiting) waiting->base = clock;
    }
    sim::make_all_ready(w, b.waiting);
  }
}
}
