/* TMA: boxes of tensors and runs of bytes between global and shared memory, in the asynchronous proxy.
 * Source: PTX ISA 9.0, "cp.async.bulk.tensor", "Tensor copies: swizzling modes", "cp.async.bulk.wait_group". */
#pragma once
#include "mbarrier.h"
#include "numbers.h"

namespace sim {

/* The swizzled address of a byte at this offset of the shared address space: higher bits permute its 16-byte chunk. */
inline uint64_t swizzled(uint64_t at, uint32_t swizzle) {
  const uint64_t bits = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return at ^ ((at >> 7 & bits) << 4);
}

/* One row of a box: neighbours in global memory, where they lie in shared memory before swizzling. */
struct Row {
  char *global;
  uint64_t offset;
  uint32_t before, inside, after; /* bytes below the tensor, in it, and beyond it */
};

inline std::vector<Row> rows_of_box(const tm_tensor_map &map, const int *at) {
  const uint32_t row_bytes = map.box[0] * map.element_bytes;
  const int64_t from = std::clamp<int64_t>(0 - int64_t(at[0]), 0, map.box[0]);
  const int64_t to = std::clamp<int64_t>(int64_t(map.sizes[0]) - at[0], from, map.box[0]);
  uint32_t count = 1;
  for (uint32_t d = 1; d < map.rank; d++) count *= map.box[d];
  std::vector<Row> rows;
  rows.reserve(count);
  for (uint32_t i = 0; i < count; i++) {
    int64_t address = (int64_t(at[0]) + from) * map.element_bytes;
    bool inside = true;
    uint32_t rest = i;
    for (uint32_t d = 1; d < map.rank; d++) {
      const int64_t c = int64_t(at[d]) + rest % map.box[d];
      rest /= map.box[d];
      inside &= c >= 0 && c < int64_t(map.sizes[d]);
      address += c * int64_t(map.strides[d - 1]);
    }
    const uint32_t before = uint32_t(from) * map.element_bytes, bytes = uint32_t(to - from) * map.element_bytes;
    if (inside && bytes) rows.push_back({map.address + address, uint64_t(i) * row_bytes, before, bytes, row_bytes - before - bytes});
    else rows.push_back({nullptr, uint64_t(i) * row_bytes, row_bytes, 0, 0});
  }
  return rows;
}

inline uint64_t bytes_of_box(const tm_tensor_map &map) {
  uint64_t bytes = map.element_bytes;
  for (uint32_t d = 0; d < map.rank; d++) bytes *= map.box[d];
  return bytes;
}

/* Bytes beyond the tensor: zeros, or NaNs of floats. */
inline void fill_outside(char *at, uint64_t n, const tm_tensor_map &map) {
  memset(at, 0, n);
  if (!map.fill_nan) return;
  for (uint64_t i = map.element_bytes - 1; i < n; i += map.element_bytes) {
    at[i] = 0x7f;
    if (map.element_bytes > 1) at[i - 1] = char(0xff);
  }
}

/* Calls f(offset in the box, pointer to shared memory, bytes) for runs of bytes that stay together. */
template <class F>
inline void each_chunk(const Block &block, char *shared, uint64_t bytes, uint32_t swizzle, F f) {
  const uint64_t start = uint64_t(shared - block.shared);
  if (!swizzle) return f(uint64_t(0), shared, bytes);
  for (uint64_t i = 0; i < bytes; i += 16)
    f(i, block.shared + swizzled(start + i, swizzle), std::min<uint64_t>(16, bytes - i));
}

inline void box_to_shared(const tm_tensor_map &map, const std::vector<Row> &rows, const Block &block, char *shared) {
  std::vector<char> box(bytes_of_box(map));
  for (const Row &r : rows) {
    fill_outside(box.data() + r.offset, r.before, map);
    if (r.inside) memcpy(box.data() + r.offset + r.before, r.global, r.inside);
    fill_outside(box.data() + r.offset + r.before + r.inside, r.after, map);
  }
  each_chunk(block, shared, box.size(), map.swizzle,
             [&](uint64_t at, char *to, uint64_t n) { memcpy(to, box.data() + at, n); });
}

/* Adds n elements; types are those of cuTensorMapEncodeTiled. */
inline void add_elements(char *to, const char *from, uint32_t bytes, const tm_tensor_map &map) {
  for (uint32_t i = 0; i < bytes; i += map.element_bytes) {
    char *t = to + i;
    const char *f = from + i;
    auto add = [&](auto zero) {
      auto x = zero, y = zero;
      memcpy(&x, t, sizeof x);
      memcpy(&y, f, sizeof y);
      x = decltype(zero)(x + y);
      memcpy(t, &x, sizeof x);
    };
    uint16_t x, y;
    memcpy(&x, t, 2);
    memcpy(&y, f, 2);
    switch (map.type) {
      case 6: x = f16_of_float(float_of_f16(x) + float_of_f16(y)); memcpy(t, &x, 2); break;
      case 9: x = bf16_of_float(float_of_bf16(x) + float_of_bf16(y)); memcpy(t, &x, 2); break;
      case 7: add(0.0f); break;
      case 8: add(0.0); break;
      case 2: case 3: add(uint32_t(0)); break;
      default: add(uint64_t(0));
    }
  }
}

inline void shared_to_box(const tm_tensor_map &map, const std::vector<Row> &rows, const Block &block, char *shared,
                          bool adds) {
  std::vector<char> box(bytes_of_box(map));
  each_chunk(block, shared, box.size(), map.swizzle,
             [&](uint64_t at, char *from, uint64_t n) { memcpy(box.data() + at, from, n); });
  for (const Row &r : rows) {
    if (!r.inside) continue;
    const char *from = box.data() + r.offset + r.before;
    if (adds) add_elements(r.global, from, r.inside, map);
    else memcpy(r.global, from, r.inside);
  }
}

/* Counts a copy's accesses to global memory. Rows that share a sector fetch it once. */
inline void count_rows_of_box(Worker &w, const std::vector<Row> &rows, bool load) {
  std::vector<uint64_t> sectors;
  uint64_t bytes = 0;
  for (const Row &r : rows) {
    if (!r.inside) continue;
    bytes += r.inside;
    const uint64_t first = reinterpret_cast<uintptr_t>(r.global);
    for (uint64_t s = first / 32; s <= (first + r.inside - 1) / 32; s++) sectors.push_back(s);
  }
  std::sort(sectors.begin(), sectors.end());
  (load ? w.counters.global_read : w.counters.global_written) += bytes;
  w.counters.global_sectors += uint64_t(std::unique(sectors.begin(), sectors.end()) - sectors.begin());
  w.counters.global_ideal += (bytes + 31) / 32;
}

/* Checks a tensor map and coordinates; false after a report. */
inline bool is_good_box(Worker &w, const tm_tensor_map &map, const int *at, const char *shared, bool load, uint32_t line) {
  const Place place = w.place(*w.current, site_of_line(line));
  const uint32_t inner = map.box[0] * map.element_bytes;
  const Block *home = block_of_address(w, shared);
  if (!home || uint64_t(shared - home->shared) % 128) {
    w.report->add(kMisaligned, place, nullptr, "a box in shared memory at an address that is no multiple of 128 bytes");
    return false;
  }
  if (inner % 16 || (map.swizzle && inner > map.swizzle)) {
    w.report->add(kMisuse, place, nullptr, "a box whose rows have %u bytes, with a swizzle of %u", inner, map.swizzle);
    return false;
  }
  /* An H100 ends such a kernel: it executed an illegal instruction. The PTX ISA does not say so. */
  if (int64_t(at[0]) * map.element_bytes % 16) {
    w.report->add(kMisaligned, place, nullptr, "a box that begins %lld bytes into the rows of its tensor, no multiple of 16",
                  static_cast<long long>(int64_t(at[0]) * map.element_bytes));
    return false;
  }
  for (uint32_t d = 0; d < map.rank && !load; d++) { /* nor does it store before the beginning of a tensor */
    if (at[d] >= 0) continue;
    w.report->add(kMisuse, place, nullptr, "a box is stored to coordinate %d of a tensor", at[d]);
    return false;
  }
  return true;
}

/* Checks the bytes of a box in shared memory; runs of a swizzled one are noted chunk by chunk. */
inline bool check_shared(Worker &w, const Access &a, const Block &block, char *shared, uint64_t bytes,
                         const tm_bounds *bounds, uint32_t swizzle, bool write) {
  bool good = is_reachable(w, a, {shared, uint32_t(bytes), bounds, write}, 16);
  each_chunk(block, shared, bytes, swizzle, [&](uint64_t, char *at, uint64_t n) {
    good = good && check_access(w, a, {at, uint32_t(n), bounds, write}, 1);
  });
  return good;
}

inline bool check_rows(Worker &w, const Access &a, const std::vector<Row> &rows, const tm_bounds *bounds, bool write) {
  for (const Row &r : rows)
    if (r.inside && !check_access(w, a, {r.global, r.inside, bounds, write}, 1)) return false;
  return true;
}

/* A load's bytes have landed: they count on its mbarrier. */
inline void complete_bytes(Worker &w, Mbarrier &m, uint64_t bytes, uint32_t clock) {
  if (w.checked) {
    Clock landed;
    landed.raise(m.agent, clock);
    m.gathering.add(landed);
  }
  m.bytes -= int64_t(bytes);
  settle(w, m);
}

inline void check_visible(Worker &w, const Mbarrier &m, uint32_t line) {
  Fiber &f = *w.current;
  if (m.visible || f.base->fenced_of(m.owner) >= m.owner_clock) return;
  w.report->add(kProxy, w.place(f, site_of_line(line)), nullptr,
                "an mbarrier is used by a bulk copy, but no fence.mbarrier_init or fence.proxy.async follows its initialisation");
}

/* A load that counts on the mbarrier at this address, in one block. `check` says whether the copy may be made. */
template <class Check, class Copy>
inline void load_async(Worker &w, char *mbarrier, const tm_bounds *bounds, int block, uint64_t bytes, uint32_t line,
                       Check check, Copy copy) {
  Mbarrier *m = find_mbarrier(w, mbarrier, bounds, block, line);
  if (!m) return;
  Fiber &f = *w.current;
  if (!m->valid) {
    w.report->add(kMbarrier, w.place(f, site_of_line(line)), nullptr, "a bulk copy counts on an mbarrier that nothing has initialised");
    return;
  }
  const uint32_t clock = ++m->operations;
  bool good = true;
  if (w.checked) {
    check_visible(w, *m, line);
    good = check(Access{&f, m->agent, clock, site_of_line(line), false, true});
  }
  postpone(w, *m, [&w, m, bytes, clock, good, copy] {
    if (good) copy();
    complete_bytes(w, *m, bytes, clock);
  });
}

/* A store reads shared memory and writes global memory later, each as an agent of its own. */
template <class Check, class Copy>
inline void store_async(Worker &w, uint32_t line, Check check, Copy copy) {
  Fiber &f = *w.current;
  f.line = line;
  if (!w.checked) return copy();
  if (!f.bulk_reads) {
    f.bulk_reads = w.new_agent(AgentKind::bulk, &f);
    f.bulk_writes = w.new_agent(AgentKind::bulk, &f);
  }
  f.bulk_line = line;
  const uint32_t tag = f.bulk_last = f.bulk_read.open, site = site_of_line(line);
  if (!check(Access{&f, f.bulk_reads, tag, site, false, true}, Access{&f, f.bulk_writes, tag, site, false, true})) return;
  if (w.run->late) f.bulk.push_back({tag, copy});
  else copy();
}

}  // namespace sim

extern "C" {

TM_EXPORT void tm_sim_tma(tm_u32 kind, const tm_tensor_map *map, void *shared, const tm_bounds *bounds, void *mbarrier,
                          const tm_bounds *mbarrier_bounds, tm_u32 blocks, const int *coordinates, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  char *at = static_cast<char *>(shared);
  count(w, tm_kind_tma);
  Block *from = block_of_address(w, at);
  if (!is_good_box(w, *map, coordinates, at, kind == tm_tma_loads, line)) return;
  const uint64_t bytes = bytes_of_box(*map);
  const std::vector<Row> rows = rows_of_box(*map, coordinates);
  if (w.counted) {
    w.counters.copied += bytes;
    count_rows_of_box(w, rows, kind == tm_tma_loads);
  }
  if (kind != tm_tma_loads) {
    const bool adds = kind == tm_tma_adds;
    return store_async(
        w, line,
        [&](Access reads, Access writes) {
          writes.atomic = adds;
          return check_shared(w, reads, *from, at, bytes, bounds, map->swizzle, false) &&
                 check_rows(w, writes, rows, map->bounds, true);
        },
        [map = *map, rows, from, at, adds] { shared_to_box(map, rows, *from, at, adds); });
  }
  const bool multicast = blocks >> 16;
  for (uint32_t rank = 0; rank < w.blocks.size(); rank++) {
    if (multicast ? !(blocks >> rank & 1) : from->rank != rank) continue;
    Block *to = &w.blocks[rank];
    char *there = to->shared + (at - from->shared);
    load_async(
        w, static_cast<char *>(mbarrier), mbarrier_bounds, multicast ? int(rank) : -1, bytes, line,
        [&](Access a) {
          const char *low = to->shared + (bounds->low - from->shared);
          const tm_bounds *part = shared_bounds(*to, low, low + (bounds->high - bounds->low));
          return check_rows(w, a, rows, map->bounds, false) &&
                 check_shared(w, a, *to, there, bytes, part, map->swizzle, true);
        },
        [map = *map, rows, to, there] { box_to_shared(map, rows, *to, there); });
  }
}

TM_EXPORT void tm_sim_bulk(tm_u32 kind, void *shared, const tm_bounds *bounds, void *global,
                           const tm_bounds *global_bounds, tm_u32 bytes, void *mbarrier,
                           const tm_bounds *mbarrier_bounds, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  count(w, tm_kind_tma);
  char *s = static_cast<char *>(shared), *g = static_cast<char *>(global);
  if (w.counted) {
    w.counters.copied += bytes;
    count_rows_of_box(w, {{g, 0, 0, bytes, 0}}, kind == tm_tma_loads);
  }
  if (bytes % 16 || !bytes) {
    w.report->add(kMisuse, w.place(*w.current, site_of_line(line)), nullptr, "a bulk copy of %u bytes", bytes);
    return;
  }
  const bool loads = kind == tm_tma_loads;
  auto check = [&](const Access &to_shared, const Access &to_global) {
    return check_access(w, to_global, {g, bytes, global_bounds, !loads}, 16) &&
           check_access(w, to_shared, {s, bytes, bounds, loads}, 16);
  };
  if (!loads) return store_async(w, line, check, [s, g, bytes] { memcpy(g, s, bytes); });
  load_async(w, static_cast<char *>(mbarrier), mbarrier_bounds, -1, bytes, line,
             [&](Access a) { return check(a, a); }, [s, g, bytes] { memcpy(s, g, bytes); });
}

TM_EXPORT void tm_sim_bulk_commit(tm_u32) {
  sim::Fiber &f = *sim::worker->current;
  if (!sim::worker->checked) return;
  f.bulk_read.commit();
  f.bulk_written.commit();
}

TM_EXPORT void tm_sim_bulk_wait(tm_u32 pending, tm_u32 only_read, tm_u32) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  if (!w.checked) return;
  f.bulk_read.wait(pending);
  if (!only_read) f.bulk_written.wait(pending);
  while (!f.bulk.empty() && f.bulk.front().first <= f.bulk_read.done) {
    f.bulk.front().second();
    f.bulk.pop_front();
  }
  if (!f.bulk_reads) return;
  auto known = std::make_shared<Clock>(*f.base);
  known->raise(f.bulk_reads, f.bulk_read.done);
  if (!only_read) known->raise(f.bulk_writes, f.bulk_written.done);
  f.base = known;
}
}
