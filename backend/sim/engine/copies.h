/* cp.async. A copy is checked when it is issued, on the knowledge of its thread; it lands when a wait needs it, or at
 * once. Its bytes belong to an agent of the thread's until the wait: nobody may touch them before.
 * Source: PTX ISA 9.0, "cp.async", "cp.async.commit_group", "cp.async.wait_group". */
#pragma once
#include "mbarrier.h"

namespace sim {

inline void copy_now(const Copy &c) {
  memcpy(c.to, c.from, c.copied);
  memset(c.to + c.copied, 0, c.bytes - c.copied);
}

/* Lets the copies of a thread up to a tag land. */
inline void land_copies(Fiber &f, uint32_t tag) {
  size_t kept = 0;
  for (const Copy &c : f.copies) {
    if (c.group <= tag) copy_now(c);
    else f.copies[kept++] = c;
  }
  f.copies.resize(kept);
}

}  // namespace sim

extern "C" {

TM_EXPORT void tm_sim_copy(void *to, const tm_bounds *to_bounds, const void *from, const tm_bounds *from_bounds,
                           tm_u32 bytes, tm_u32 copied, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  count(w, tm_kind_cp_async);
  if (w.counted) w.counters.copied += copied;
  const Copy copy{static_cast<char *>(to), static_cast<const char *>(from), bytes, copied, f.copies_open};
  if (!w.checked) return copy_now(copy);
  if (copied > bytes) {
    w.report->add(kMisuse, w.place(f, site_of_line(line)), nullptr, "a cp.async of %u bytes is to copy %u", bytes,
                  copied);
    return;
  }
  if (!f.copies_agent) f.copies_agent = w.new_agent(AgentKind::copies, &f);
  Access access = access_of(f, site_of_line(line));
  access.agent = f.copies_agent;
  access.clock = f.copies_last = f.copies_open;
  f.copies_line = line;
  bool good = !copied || check_access(w, access, {copy.from, copied, from_bounds, false}, 1);
  if (good && copied && reinterpret_cast<uintptr_t>(from) % bytes) {
    w.report->add(kMisaligned, w.place(f, access.site), nullptr, "%s by cp.async, which is not a multiple of %u",
                  describe({copy.from, copied, from_bounds, false}).c_str(), bytes);
    good = false;
  }
  good &= check_access(w, access, {copy.to, bytes, to_bounds, true}, bytes);
  if (!good) return;
  if (w.counted) {
    if (copied) count_access(w, f, access.site, copy.from, copied, false, from_bounds);
    count_access(w, f, access.site, copy.to, bytes, true, to_bounds);
  }
  /* The copy may begin at once, so that what it reads has to be there; a late one lands with the same bytes or, where
   * the source changes, with what another thread may not write yet. */
  if (w.run->late) f.copies.push_back(copy);
  else copy_now(copy);
}

TM_EXPORT void tm_sim_copy_commit(tm_u32) {
  using namespace sim;
  Worker &w = *worker;
  if (!w.checked) return;
  Fiber &f = *w.current;
  f.copy_groups.push_back(f.copies_open++);
}

TM_EXPORT void tm_sim_copy_wait(tm_u32 pending, tm_u32) {
  using namespace sim;
  Worker &w = *worker;
  if (!w.checked) return;
  count_step(w);
  Fiber &f = *w.current;
  while (f.copy_groups.size() > pending) {
    f.copies_done = std::max(f.copies_done, f.copy_groups.front());
    f.copy_groups.pop_front();
  }
  land_copies(f, f.copies_done);
}

TM_EXPORT void tm_sim_copy_wait_all(tm_u32) {
  using namespace sim;
  Worker &w = *worker;
  if (!w.checked) return;
  Fiber &f = *w.current;
  f.copy_groups.clear();
  f.copies_done = f.copies_open++;
  land_copies(f, f.copies_done);
}

TM_EXPORT void tm_sim_copy_arrive(void *mbarrier, const tm_bounds *bounds, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  Mbarrier *m = find_mbarrier(w, static_cast<char *>(mbarrier), bounds, -1, line);
  if (!m) return;
  count(w, tm_kind_mbarrier);
  if (!w.checked) return arrive(w, *m, 1, line);
  if (!f.copies_agent) f.copies_agent = w.new_agent(AgentKind::copies, &f);
  const uint32_t tag = f.copies_given = f.copies_open++;
  release_to(m->gathering, f);
  postpone(w, *m, [&w, &f, m, tag, line] {
    land_copies(f, tag);
    Clock landed;
    landed.raise(f.copies_agent, tag);
    m->gathering.add(landed);
    arrive(w, *m, 1, line);
  });
}
}
