/* Products of a warpgroup: 128 threads give a fragment of d, and matrices in shared memory (the left one may be in
 * registers). They are computed when a wait needs them, or at once.
 * Source: PTX ISA 9.0, "Asynchronous warpgroup level matrix instructions"; layouts of operands: "Shared Memory Matrix
 * Layout" and "Matrix Descriptor Format". */
#pragma once
#include "products.h"
#include "tma.h"

namespace sim {

struct Wgmma {
  Fiber *by;
  const tm_product *shape;
  void *d;
  const void *a; /* registers, or null */
  uint64_t a_matrix, b_matrix;
  uint32_t transpose_a, transpose_b, accumulate;
};

/* A matrix in shared memory as its descriptor gives it. `outer` counts m or n, `inner` counts k. */
struct Matrix {
  uint64_t start, leading, stride;
  uint32_t swizzle, element;
  bool turned; /* contiguous along m or n, not k */

  Matrix(uint64_t descriptor, uint32_t element_bytes, bool transposed) {
    start = (descriptor & 0x3fff) << 4;
    leading = (descriptor >> 16 & 0x3fff) << 4;
    stride = (descriptor >> 32 & 0x3fff) << 4;
    const uint32_t mode = descriptor >> 62 & 3;
    swizzle = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0;
    element = element_bytes;
    turned = transposed;
  }

  /* The offset in shared memory of an element. */
  uint64_t at(uint64_t outer, uint64_t inner) const {
    uint64_t offset;
    if (!turned) {
      const uint64_t byte = inner * element;
      offset = swizzle ? outer / 8 * stride + outer % 8 * swizzle + byte
                       : outer / 8 * stride + byte / 16 * leading + outer % 8 * 16 + byte % 16;
    } else {
      const uint64_t byte = outer * element;
      offset = swizzle ? byte / swizzle * leading + inner / 8 * stride + inner % 8 * swizzle + byte % swizzle
                       : byte / 16 * stride + inner / 8 * leading + inner % 8 * 16 + byte % 16;
    }
    return swizzled(start + offset, swizzle);
  }
};

constexpr uint32_t kWidest = 256, kDeepest = 32;
template <class N>
struct WideOperands {
  alignas(64) N a[64][kDeepest], b[kDeepest][kWidest], c[64][kWidest];
};

template <class N>
inline void compute_wgmma(const Block &block, const std::vector<Wgmma> &lanes) {
  const auto operands = std::make_unique<WideOperands<N>>();
  WideOperands<N> &x = *operands;
  const Wgmma &first = lanes[0];
  const tm_product &s = *first.shape;
  const uint32_t size = bytes_of(s.a);
  const Matrix left(first.a_matrix, size, first.transpose_a), right(first.b_matrix, size, first.transpose_b);
  const uint32_t packed = 4 / size;
  if (!first.a) {
    for (uint32_t i = 0; i < 64; i++)
      for (uint32_t k = 0; k < s.k; k++) x.a[i][k] = element_at<N>(block.shared + left.at(i, k), 0, s.a);
  }
  for (uint32_t k = 0; k < s.k; k++)
    for (uint32_t j = 0; j < s.n; j++) x.b[k][j] = element_at<N>(block.shared + right.at(j, k), 0, s.b);
  for (uint32_t t = 0; t < 128; t++) {
    const uint32_t row = t / 32 * 16 + t % 32 / 4, column = t % 4;
    if (first.a) {
      uint32_t slot = 0;
      for (uint32_t kb = 0; kb < 2; kb++)
        for (uint32_t mb = 0; mb < 2; mb++)
          for (uint32_t e = 0; e < packed; e++)
            x.a[row + 8 * mb][(kb * 4 + column) * packed + e] = element_at<N>(lanes[t].a, slot++, s.a);
    }
    for (uint32_t slot = 0; slot < s.n / 2; slot++) {
      N &c = x.c[row + slot / 2 % 2 * 8][slot / 4 * 8 + column * 2 + slot % 2];
      c = first.accumulate ? element_at<N>(lanes[t].d, slot, s.c) : N(0);
    }
  }
  for (uint32_t i = 0; i < 64; i++)
    for (uint32_t k = 0; k < s.k; k++) {
      const N l = x.a[i][k];
      for (uint32_t j = 0; j < s.n; j += 8)
        for (uint32_t e = 0; e < 8; e++) x.c[i][j + e] += l * x.b[k][j + e];
    }
  for (uint32_t t = 0; t < 128; t++) {
    const uint32_t row = t / 32 * 16 + t % 32 / 4, column = t % 4;
    for (uint32_t slot = 0; slot < s.n / 2; slot++)
      put_element<N>(lanes[t].d, slot, s.c, x.c[row + slot / 2 % 2 * 8][slot / 4 * 8 + column * 2 + slot % 2]);
  }
}

/* Checks the bytes of an operand in shared memory, in chunks of 16. */
inline bool check_matrix(Worker &w, const Access &a, Block &block, const Matrix &matrix, uint32_t outer_from,
                         uint32_t outer, uint32_t inner) {
  const uint32_t run = 16 / matrix.element;
  for (uint32_t o = outer_from; o < outer_from + outer; o += matrix.turned ? run : 1)
    for (uint32_t i = 0; i < inner; i += matrix.turned ? 1 : run) {
      const Span span{block.shared + matrix.at(o, i), 16, &block.bounds[0], false};
      if (!check_access(w, a, span, 16)) return false;
    }
  return true;
}

/* Each warp reads its rows of the left operand and all of the right one, in its own time. */
inline bool check_wgmma(Worker &w, Block &block, Warpgroup &group, void **operands, uint32_t tag, uint32_t line) {
  bool good = true;
  for (uint32_t warp = 0; warp < 4; warp++) {
    const Wgmma &x = *static_cast<Wgmma *>(operands[32 * warp]);
    const tm_product &s = *x.shape;
    const Access a{x.by, group.agent + warp, tag, site_of_line(line), false, true};
    if (!x.a) good &= check_matrix(w, a, block, Matrix(x.a_matrix, bytes_of(s.a), x.transpose_a), 16 * warp, 16, s.k);
    good &= check_matrix(w, a, block, Matrix(x.b_matrix, bytes_of(s.b), x.transpose_b), 0, s.n, s.k);
  }
  return good;
}

inline void run_wgmma(Worker &w, Block &block, Warpgroup &group, uint32_t line) {
  const Wgmma &first = *static_cast<Wgmma *>(group.operands[0]);
  std::vector<Wgmma> lanes;
  for (void *o : group.operands) lanes.push_back(*static_cast<Wgmma *>(o));
  for (const Wgmma &x : lanes) {
    if (x.shape == first.shape && x.a_matrix == first.a_matrix && x.b_matrix == first.b_matrix &&
        x.accumulate == first.accumulate)
      continue;
    const Place other = w.place(*first.by, site_of_line(line));
    w.report->add(kWgmma, w.place(*x.by, site_of_line(line)), &other,
                  "threads of one warpgroup give different descriptors or flags to one wgmma");
    break;
  }
  const uint32_t tag = ++group.issued;
  count(w, tm_kind_wgmma);
  count_product(w, *first.shape);
  if (w.checked) {
    for (uint32_t warp = 0; warp < 4 && (!group.agent || warp); warp++) {
      const uint32_t agent = w.new_agent(AgentKind::wgmma, lanes[32 * warp].by);
      if (!warp) group.agent = agent;
    }
    if (!check_wgmma(w, block, group, group.operands, tag, line)) return;
  }
  const bool whole = first.shape->c == tm_is_i32;
  auto compute = [&block, lanes = std::move(lanes), whole] {
    if (whole) compute_wgmma<uint32_t>(block, lanes);
    else compute_wgmma<float>(block, lanes);
  };
  if (w.run->late && w.checked) group.postponed.push_back({tag, std::move(compute)});
  else compute();
}

inline void meet_in_warpgroup(Worker &w, Wgmma &x, uint32_t line) {
  Fiber &f = *w.current;
  f.line = line;
  const uint32_t number = f.thread.x / 128;
  if (number >= f.home->warpgroups.size()) {
    w.report->add(kCollective, w.place(f, site_of_line(line)), nullptr, "wgmma by a warp that is in no warpgroup");
    stop_run(w);
  }
  Warpgroup &group = f.home->warpgroups[number];
  if (group.arrived == 0) group.line = line;
  if (group.line != line) {
    const Place other = w.place(*group.waiting[0], site_of_line(group.line));
    w.report->add(kCollective, w.place(f, site_of_line(line)), &other,
                  "threads of one warpgroup execute different wgmma together");
    stop_run(w);
  }
  group.operands[f.thread.x % 128] = &x;
  if (++group.arrived < 128) {
    group.waiting.push_back(&f);
    return wait_here(w, Wait::warpgroup, "wgmma", line);
  }
  group.arrived = 0;
  run_wgmma(w, *f.home, group, line);
  make_all_ready(w, group.waiting);
}

}  // namespace sim

extern "C" {

TM_EXPORT void tm_sim_wgmma(const tm_product *shape, void *d, const void *a, tm_u64 a_matrix, tm_u64 b_matrix,
                            tm_u32 transpose_a, tm_u32 transpose_b, tm_u32 accumulate, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  if (w.checked && !f.wgmma_fenced)
    w.report->add(kWgmma, w.place(f, site_of_line(line)), nullptr, "wgmma without a wgmma.fence before it");
  Wgmma x{&f, shape, d, a, a_matrix, b_matrix, transpose_a, transpose_b, accumulate != 0};
  meet_in_warpgroup(w, x, line);
  f.wgmma_issued++;
  f.wgmma_line = line;
}

TM_EXPORT void tm_sim_wgmma_fence(tm_u32) { sim::worker->current->wgmma_fenced = true; }

TM_EXPORT void tm_sim_wgmma_commit(tm_u32) {
  sim::Fiber &f = *sim::worker->current;
  if (sim::worker->checked) f.wgmma_groups.push_back(f.wgmma_issued);
}

TM_EXPORT void tm_sim_wgmma_wait(tm_u32 pending, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Fiber &f = *w.current;
  f.line = line;
  if (!w.checked || f.home->warpgroups.empty()) return;
  Warpgroup &group = f.home->warpgroups[f.thread.x / 128];
  while (f.wgmma_groups.size() > pending) {
    f.wgmma_done = std::max(f.wgmma_done, f.wgmma_groups.front());
    f.wgmma_groups.pop_front();
  }
  while (!group.postponed.empty() && group.postponed.front().first <= f.wgmma_done) {
    group.postponed.front().second();
    group.postponed.pop_front();
  }
  if (!group.agent) return;
  auto known = std::make_shared<Clock>(*f.base);
  known->raise(group.agent + f.thread.x % 128 / 32, f.wgmma_done);
  f.base = known;
}
}
