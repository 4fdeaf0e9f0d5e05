/* Vector clocks: a thread's knowledge of the others. Agents are the threads of a cluster and the asynchronous units
 * (a thread's cp.async, an mbarrier's copies, a warpgroup's wgmma), which act in their own time.
 *
 * A clock is immutable once shared, since after a barrier all threads know the same; a thread's own component is kept
 * beside it. `fenced` says how far each agent's writes have passed a fence towards the asynchronous proxy.
 * Source: Flanagan and Freund, "FastTrack: Efficient and Precise Dynamic Race Detection", PLDI 2009. */
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

namespace sim {

struct Clock;
using ClockRef = std::shared_ptr<const Clock>;

struct Clock {
  std::vector<uint32_t> known, fenced;
  std::unordered_map<uint32_t, ClockRef> foreign; /* knowledge of other clusters, by their number */

  uint32_t of(uint32_t agent) const { return agent < known.size() ? known[agent] : 0; }
  uint32_t fenced_of(uint32_t agent) const { return agent < fenced.size() ? fenced[agent] : 0; }
  void raise(uint32_t agent, uint32_t value) { raise_in(known, agent, value); }
  void join(const Clock &other) {
    join_in(known, other.known);
    join_in(fenced, other.fenced);
    for (const auto &[cluster, clock] : other.foreign) join_foreign(cluster, clock);
  }
  void join_foreign(uint32_t cluster, const ClockRef &clock) {
    ClockRef &mine = foreign[cluster];
    if (!mine || mine == clock) {
      mine = clock;
      return;
    }
    auto joined = std::make_shared<Clock>(*mine);
    joined->join(*clock);
    mine = joined;
  }
  /* A fence towards the asynchronous proxy: all known writes have passed it. */
  void fence() { join_in(fenced, known); }

 private:
  static void raise_in(std::vector<uint32_t> &v, uint32_t agent, uint32_t value) {
    if (agent >= v.size()) v.resize(agent + 1, 0);
    v[agent] = std::max(v[agent], value);
  }
  static void join_in(std::vector<uint32_t> &mine, const std::vector<uint32_t> &other) {
    if (mine.size() < other.size()) mine.resize(other.size(), 0);
    uint32_t *m = mine.data();
    const uint32_t *o = other.data();
    for (size_t i = 0, n = other.size(); i < n; i++) m[i] = std::max(m[i], o[i]);
  }
};

/* The join of the clocks of threads that arrive somewhere, one after the other. */
class Gathering {
 public:
  void add(const ClockRef &base, uint32_t agent, uint32_t own, uint32_t copies_agent, uint32_t copies_done) {
    if (!clock_) {
      clock_ = std::make_shared<Clock>(*base);
    } else if (base != last_) {
      clock_->join(*base);
    }
    last_ = base;
    clock_->raise(agent, own);
    if (copies_agent) clock_->raise(copies_agent, copies_done);
  }
  void add(const Clock &clock) {
    if (!clock_) clock_ = std::make_shared<Clock>();
    clock_->join(clock);
  }
  bool empty() const { return !clock_; }
  ClockRef take() {
    last_.reset();
    return std::move(clock_);
  }

 private:
  std::shared_ptr<Clock> clock_;
  ClockRef last_;
};

}  // namespace sim
