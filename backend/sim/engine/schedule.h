/* Selects the next fiber. A fiber yields only where it waits for others, or polls; the fiber that completes what they
 * wait for makes them ready again and goes on. If no fiber is ready or left to start, the waiting ones wait for ever. */
#pragma once
#include <time.h>

#include <string>

#include "state.h"

namespace sim {

[[noreturn]] inline void stop_run(Worker &w) {
  w.stopped = true;
  Context dropped;
  switch_context(dropped, w.main);
  abort();
}

/* Seconds that the processor has worked for this thread of the host: other programs do not make them more. */
inline double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

/* A step of the run: an access that is checked, a wait, a poll. */
inline void count_step(Worker &w, uint32_t site = 0) {
  const uint64_t steps = ++w.counters.steps;
  const bool many = w.run->steps && steps > w.run->steps;
  if (!many && ((steps & 1023) || processor_seconds() < w.deadline)) return;
  const Place place = w.place(*w.current, site ? site : site_of_line(w.current->line));
  if (many)
    w.report->add(kTimeout, place, nullptr, "the run took more than %llu steps", (unsigned long long)w.run->steps);
  else
    w.report->add(kTimeout, place, nullptr, "the run took longer than %g s of processor time", w.run->seconds);
  stop_run(w);
}

/* So many steps in which nothing changes are for ever. A bound on steps says the same on any machine, however busy. */
constexpr uint64_t kIdleSteps = 1 << 24, kIdleOfPoll = 16, kIdleOfRead = 8, kReadsOfPoll = 64;

inline void note_change(Worker &w) { w.idle = 0; }

[[noreturn]] inline void report_deadlock(Worker &w);

inline void note_idle(Worker &w, uint64_t steps) {
  w.idle += steps;
  if (w.idle > kIdleSteps && w.alone) report_deadlock(w);
}

/* "threads 0-31", "thread 5", "threads 0-3, 7 and 12 more" */
inline std::string name_threads(const std::vector<uint32_t> &threads) {
  std::string text = threads.size() == 1 ? "thread " : "threads ";
  size_t shown = 0;
  for (size_t i = 0; i < threads.size();) {
    size_t j = i;
    while (j + 1 < threads.size() && threads[j + 1] == threads[j] + 1) j++;
    if (shown++ == 3) return text + " and " + std::to_string(threads.size() - i) + " more";
    if (i) text += ", ";
    text += std::to_string(threads[i]);
    if (j > i) text += "-" + std::to_string(threads[j]);
    i = j + 1;
  }
  return text;
}

/* The positions of a block's threads, grouped by the event that they wait for. */
inline std::string describe_waiting(Worker &w, const Block *block) {
  std::map<std::string, std::vector<uint32_t>> groups;
  for (Fiber &f : w.fibers) {
    if (f.home != block) continue;
    std::string where = f.state == State::ended ? "ended" : f.state == State::unstarted ? "not started" : "not waiting";
    if (f.state == State::waiting || f.wait == Wait::polling)
      where = std::string(f.state == State::waiting ? "at " : "polling, at ") + f.waits_in +
              (f.line ? " in line " + std::to_string(f.line) : "");
    groups[where].push_back(f.thread.x);
  }
  std::string text;
  for (auto &[where, threads] : groups) text += (text.empty() ? "" : "; ") + name_threads(threads) + ": " + where;
  return text;
}

/* The missing arrivals of the mbarriers that threads of a block wait for. */
inline std::string describe_mbarriers(const Block &block);

/* No fiber can run, or the running ones have polled for too long. */
[[noreturn]] inline void report_deadlock(Worker &w) {
  const bool polled = w.idle > kIdleSteps;
  Fiber *first = nullptr;
  if (polled) (first = w.current)->wait = Wait::polling;
  Kind kind = kDeadlock;
  auto prefer = [&](Wait wait, Kind as) {
    for (Fiber &f : w.fibers) {
      if (f.state != State::waiting || f.wait != wait || (first && kind != kDeadlock)) continue;
      first = &f;
      kind = as;
    }
  };
  if (!polled) {
    prefer(Wait::warp, kCollective);
    prefer(Wait::warpgroup, kCollective);
    prefer(Wait::barrier, kDivergentBarrier);
  }
  for (Fiber &f : w.fibers)
    if (!first && f.state == State::waiting) first = &f;
  bool mbarriers = false;
  for (Fiber &f : w.fibers) mbarriers |= f.state == State::waiting && f.wait == Wait::mbarrier;
  if (mbarriers && kind == kDivergentBarrier) kind = kDeadlock;
  const Place place = w.place(*first, polled ? first->polls_at : site_of_line(first->line));
  const bool later = polled && w.run->grid.x * w.run->grid.y * w.run->grid.z > w.blocks.size();
  w.report->add(kind, place, nullptr, "%s never ends%s%s: %s%s", first->waits_in,
                polled ? ", nothing changes any more" : "",
                later ? " (blocks run one after the other, and may not wait for later ones)" : "", describe_waiting(w, first->home).c_str(),
                describe_mbarriers(*first->home).c_str());
  stop_run(w);
}

inline void make_ready(Worker &w, Fiber *f) {
  note_change(w);
  f->state = State::ready;
  f->wait = Wait::none;
  w.ready.push_front(f);
}

/* Makes ready those who waited, so that they run in the order of the seed. */
inline void make_all_ready(Worker &w, std::vector<Fiber *> &waiting) {
  if (!w.checked) {
    std::reverse(waiting.begin(), waiting.end());
  } else if (w.run->seed > 1) {
    std::shuffle(waiting.begin(), waiting.end(), w.random);
  } else if (w.run->seed == 0) {
    std::sort(waiting.begin(), waiting.end(), [](Fiber *a, Fiber *b) { return a->number > b->number; });
  } else {
    std::sort(waiting.begin(), waiting.end(), [](Fiber *a, Fiber *b) { return a->number < b->number; });
  }
  for (Fiber *f : waiting) make_ready(w, f);
  waiting.clear();
}

/* The next fiber to run; null when all have ended. */
inline Fiber *take_next(Worker &w) {
  const bool more = w.started < w.order.size();
  const bool start = more && (w.ready.empty() || (w.run->seed > 1 && w.random() % 4 == 0));
  if (start) return &w.fibers[w.order[w.started++]];
  if (!w.ready.empty()) return w.ready.pop();
  if (w.live) report_deadlock(w);
  return nullptr;
}

inline void become(Worker &w, Fiber *f) {
  w.current = f;
  tm_self = f;
}

void fiber_main();

inline void switch_to(Worker &w, Context &from, Fiber *f) {
  if (f->state == State::unstarted) {
    f->stack = w.stacks.take();
    make_context(f->context, f->stack, fiber_main);
  }
  f->state = State::ready;
  become(w, f);
  w.counters.switches++;
  switch_context(from, f->context);
}

/* Lets others run until somebody makes this fiber ready again. */
inline void wait_here(Worker &w, Wait wait, const char *in, uint32_t line) {
  Fiber *f = w.current;
  f->state = State::waiting;
  f->wait = wait;
  f->waits_in = in;
  f->line = line;
  count_step(w);
  Fiber *next = take_next(w);
  if (next != f) switch_to(w, f->context, next);
  else f->state = State::ready;
}

/* Lets others run, for a thread that polls. */
inline void give_way(Worker &w, const char *in, uint32_t line, uint32_t site = 0) {
  Fiber *f = w.current;
  f->line = line;
  f->polls_at = site ? site : site_of_line(line);
  f->waits_in = in;
  f->state = State::ready;
  f->wait = Wait::polling;
  count_step(w);
  note_idle(w, kIdleOfPoll);
  w.ready.push_back(f);
  Fiber *next = w.started < w.order.size() ? &w.fibers[w.order[w.started++]] : take_next(w);
  if (next != f) switch_to(w, f->context, next);
  f->wait = Wait::none;
}

/* The latest access at one address by a thread that may be polling; true where it finds what it has found before. */
inline bool is_poll(Fiber &f, const void *at, uint32_t bytes) {
  const size_t size = bytes < sizeof f.found ? bytes : sizeof f.found;
  const bool again = f.polled == at && memcmp(f.found, at, size) == 0;
  f.polled = at;
  memcpy(f.found, at, size);
  return again;
}

/* A thread that reads the same from one address again and again waits for another one to write there. */
inline void note_read_by(Worker &w, Fiber &f, const void *at, uint32_t bytes, uint32_t site) {
  if (!is_poll(f, at, bytes)) {
    f.polls = 0;
    return note_change(w);
  }
  f.waits_in = "a read";
  f.line = 0; /* of a read only the site is known */
  f.polls_at = site;
  note_idle(w, kIdleOfRead);
  if (++f.polls % kReadsOfPoll == 0) give_way(w, "a read", 0, site);
}

void end_thread(Worker &w, Fiber &f);

/* The bottom of every stack: threads that start while another one ends run on its stack. */
inline void fiber_main() {
  for (;;) {
    Worker &w = *worker;
    w.run->entry(w.run->arguments);
    Fiber *f = w.current;
    note_change(w);
    end_thread(w, *f);
    Fiber *next = take_next(w);
    if (next && next->state == State::unstarted) {
      next->stack = f->stack;
      next->state = State::ready;
      become(w, next);
      continue;
    }
    w.stacks.give(f->stack);
    Context ended;
    if (!next) switch_context(ended, w.main);
    switch_to(w, ended, next);
  }
}

}  // namespace sim
