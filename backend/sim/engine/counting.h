/* The cost of an access: sectors of global memory, wavefronts of shared memory. Lanes run one after the other here, so
 * the n-th access of every lane of a warp at one place of the code is taken for one request.
 * Source: NVIDIA, "CUDA C++ Best Practices Guide", coalesced access and shared memory banks. */
#pragma once
#include <set>

#include "shadow.h"

namespace sim {

constexpr size_t kMostRequests = 1 << 15; /* of one place in one block; what is beyond is not counted */

inline void count(Worker &w, tm_kind kind) {
  if (w.counted) w.counters.instructions[kind]++;
}

inline bool is_shared(const tm_bounds *bounds) { return static_cast<const Region *>(bounds->region)->shared; }

/* Offsets in buffers stand for addresses: on a GPU a buffer begins at a multiple of 256 bytes. */
inline void count_access(Worker &w, Fiber &f, uint32_t site, const void *at, uint32_t bytes, bool write,
                         const tm_bounds *bounds) {
  tm_sim_counters &c = w.counters;
  const bool shared = is_shared(bounds);
  (shared ? (write ? c.shared_written : c.shared_read) : (write ? c.global_written : c.global_read)) += bytes;
  const tm_kind kind = shared ? (write ? tm_kind_shared_store : tm_kind_shared_load)
                              : (write ? tm_kind_global_store : tm_kind_global_load);
  Trace &trace = f.warp->traces[uint64_t(site) << 3 | kind];
  trace.kind = kind;
  const uint32_t n = trace.seen[f.lane]++;
  if (n >= kMostRequests) return;
  if (n >= trace.requests.size()) trace.requests.resize(n + 1);
  Request &r = trace.requests[n];
  r.lanes |= 1u << f.lane;
  r.bytes = std::max(r.bytes, bytes);
  r.at[f.lane] = uint64_t(static_cast<const char *>(at) - (shared ? f.shared : bounds->low));
}

/* Words of shared memory that some lanes want at once: each bank gives one at a time. */
inline void count_wavefronts(Worker &w, const uint64_t *words, size_t n) {
  uint32_t in_bank[32] = {}, most = 0;
  std::vector<uint64_t> distinct(words, words + n);
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (uint64_t word : distinct) most = std::max(most, ++in_bank[word % 32]);
  w.counters.shared_wavefronts += most;
  w.counters.shared_ideal += (distinct.size() + 31) / 32;
}

inline void count_shared(Worker &w, const Request &r) {
  const uint32_t at_once = r.bytes >= 16 ? 8 : r.bytes >= 8 ? 16 : 32;
  w.counters.shared_requests++;
  for (uint32_t from = 0; from < 32; from += at_once) {
    uint64_t words[64];
    size_t n = 0;
    for (uint32_t lane = from; lane < from + at_once; lane++)
      if (r.lanes >> lane & 1)
        for (uint64_t at = r.at[lane] / 4; at <= (r.at[lane] + r.bytes - 1) / 4; at++) words[n++] = at;
    if (n) count_wavefronts(w, words, n);
  }
}

inline void count_global(Worker &w, const Request &r) {
  std::vector<uint64_t> sectors, starts;
  for (uint32_t lane = 0; lane < 32; lane++) {
    if (!(r.lanes >> lane & 1)) continue;
    starts.push_back(r.at[lane]);
    for (uint64_t s = r.at[lane] / 32; s <= (r.at[lane] + r.bytes - 1) / 32; s++) sectors.push_back(s);
  }
  auto distinct = [](std::vector<uint64_t> &v) {
    std::sort(v.begin(), v.end());
    return uint64_t(std::unique(v.begin(), v.end()) - v.begin());
  };
  w.counters.global_requests++;
  w.counters.global_sectors += distinct(sectors);
  w.counters.global_ideal += (distinct(starts) * r.bytes + 31) / 32;
}

/* Counts what a warp has accessed, and forgets it. */
inline void count_traces(Worker &w, Warp &warp) {
  for (auto &[key, trace] : warp.traces) {
    const bool shared = trace.kind == tm_kind_shared_load || trace.kind == tm_kind_shared_store;
    for (const Request &r : trace.requests) {
      if (!r.lanes) continue;
      count(w, trace.kind);
      if (shared) count_shared(w, r);
      else count_global(w, r);
    }
  }
  warp.traces.clear();
}

/* Eight rows of 16 bytes: one matrix of ldmatrix or stmatrix. */
inline void count_rows(Worker &w, char *const *rows, bool write) {
  uint64_t words[32];
  for (uint32_t i = 0; i < 32; i++) words[i] = reinterpret_cast<uintptr_t>(rows[i / 4]) / 4 + i % 4;
  (write ? w.counters.shared_written : w.counters.shared_read) += 128;
  w.counters.shared_requests++;
  count_wavefronts(w, words, 32);
}

}  // namespace sim
