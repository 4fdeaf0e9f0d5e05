/* Which fiber runs next. A fiber gives way only where it waits for others; whoever completes what they wait for makes
 * them ready again and goes on. Nobody ready and nobody left to start means that those who wait, wait for ever. */
#pragma once
#include <string>

#include "state.h"

namespace sim {

[[noreturn]] inline void stop_run(Worker &w) {
  w.stopped = true;
  Context dropped;
  switch_context(dropped, w.main);
  abort();
}

inline void check_time(Worker &w) {
  if (++w.ticks & 1023) return;
  if (std::chrono::steady_clock::now() < w.deadline) return;
  const Place place = w.place(*w.current, site_of_line(w.current->line));
  w.report->add(kTimeout, place, nullptr, "the run took longer than %g s", w.run->seconds);
  stop_run(w);
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

/* Where the threads of a block stand, grouped by what they wait for. */
inline std::string describe_waiting(Worker &w, const Block *block) {
  std::map<std::string, std::vector<uint32_t>> groups;
  for (Fiber &f : w.fibers) {
    if (f.home != block) continue;
    std::string where = f.state == State::ended ? "ended"
                        : f.state == State::waiting
                            ? std::string("at ") + f.waits_in + " in line " + std::to_string(f.line)
                            : "not waiting";
    groups[where].push_back(f.thread.x);
  }
  std::string text;
  for (auto &[where, threads] : groups) text += (text.empty() ? "" : "; ") + name_threads(threads) + ": " + where;
  return text;
}

/* What the mbarriers that threads of a block wait for still lack. */
inline std::string describe_mbarriers(const Block &block);

[[noreturn]] inline void report_deadlock(Worker &w) {
  Fiber *first = nullptr;
  Kind kind = kDeadlock;
  auto prefer = [&](Wait wait, Kind as) {
    for (Fiber &f : w.fibers) {
      if (f.state != State::waiting || f.wait != wait || (first && kind != kDeadlock)) continue;
      first = &f;
      kind = as;
    }
  };
  prefer(Wait::warp, kCollective);
  prefer(Wait::warpgroup, kCollective);
  prefer(Wait::barrier, kDivergentBarrier);
  for (Fiber &f : w.fibers)
    if (!first && f.state == State::waiting) first = &f;
  bool mbarriers = false;
  for (Fiber &f : w.fibers) mbarriers |= f.state == State::waiting && f.wait == Wait::mbarrier;
  if (mbarriers && kind == kDivergentBarrier) kind = kDeadlock;
  w.report->add(kind, w.place(*first, site_of_line(first->line)), nullptr, "%s never ends: %s%s", first->waits_in,
                describe_waiting(w, first->home).c_str(), describe_mbarriers(*first->home).c_str());
  stop_run(w);
}

inline void make_ready(Worker &w, Fiber *f) {
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
  check_time(w);
  Fiber *next = take_next(w);
  if (next != f) switch_to(w, f->context, next);
  else f->state = State::ready;
}

/* Lets others run, for a thread that polls. */
inline void give_way(Worker &w, const char *in, uint32_t line) {
  Fiber *f = w.current;
  f->line = line;
  f->waits_in = in;
  check_time(w);
  f->state = State::ready;
  w.ready.push_back(f);
  Fiber *next = w.started < w.order.size() ? &w.fibers[w.order[w.started++]] : take_next(w);
  if (next != f) switch_to(w, f->context, next);
}

void end_thread(Worker &w, Fiber &f);

/* The bottom of every stack: threads that start while another one ends run on its stack. */
inline void fiber_main() {
  for (;;) {
    Worker &w = *worker;
    w.run->entry(w.run->arguments);
    Fiber *f = w.current;
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
