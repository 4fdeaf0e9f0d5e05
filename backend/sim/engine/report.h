/* Problems found in a run: each once for a pair of places in the kernel's text, with a count. */
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <map>
#include <tuple>
#include <vector>

#include "../device/abi.h"

extern "C" {

/* As backend/sim/problems.py reads it. A site is a line of the text with the highest bit set, or else the offset of a
 * return address in the kernel's shared object; 0 is nowhere. */
struct tm_sim_problem {
  tm_u32 kind, count;
  tm_u32 site, other_site;
  tm_dim block, thread, other_block, other_thread;
  tm_u32 has_other;
  char text[260];
};
}

namespace sim {

enum Kind : uint32_t {
  kOutOfBounds,
  kMisaligned,
  kUninitialised,
  kRace,
  kBlockRace,
  kDivergentBarrier,
  kDeadlock,
  kCollective,
  kAsyncCopy,
  kMbarrier,
  kProxy,
  kWgmma,
  kMisuse,
  kTimeout,
};

constexpr uint32_t kLineSite = 0x80000000u;

struct Place {
  tm_dim block{}, thread{};
  uint32_t site = 0;
};

class Report {
 public:
  static constexpr size_t kMost = 64; /* distinct problems kept */

  void add(Kind kind, const Place &place, const Place *other, const char *format, ...)
      __attribute__((format(printf, 5, 6))) {
    const auto key = std::make_tuple(uint32_t(kind), place.site, other ? other->site : 0u);
    auto found = index_.find(key);
    if (found != index_.end()) {
      problems_[found->second].count++;
      return;
    }
    if (problems_.size() >= kMost) return;
    index_[key] = problems_.size();
    tm_sim_problem p{};
    p.kind = kind;
    p.count = 1;
    p.site = place.site;
    p.block = place.block;
    p.thread = place.thread;
    if (other) {
      p.has_other = 1;
      p.other_site = other->site;
      p.other_block = other->block;
      p.other_thread = other->thread;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p.text, sizeof p.text, format, arguments);
    va_end(arguments);
    problems_.push_back(p);
  }
  const std::vector<tm_sim_problem> &problems() const { return problems_; }

 private:
  std::vector<tm_sim_problem> problems_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, size_t> index_;
};

}  // namespace sim
