/* Products of a warp's fragments: mma.sync and wmma.
 * Source: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16 with floating point type" and its neighbours. Fragments of
 * wmma are not documented; those here are runs along k, or along n of the result. */
#pragma once
#include "lanes.h"
#include "numbers.h"

namespace sim {

struct Product {
  const tm_product *shape;
  void *c;
  const void *a, *b;
};

/* Rows and columns of one matrix of the largest product of a warp. */
constexpr uint32_t kMost = 32;
template <class N>
struct Operands {
  alignas(64) N a[kMost][kMost], b[kMost][kMost], c[kMost][kMost];
};

template <class N>
inline void multiply(Operands<N> &x, uint32_t m, uint32_t n, uint32_t k) {
  for (uint32_t i = 0; i < m; i++)
    for (uint32_t l = 0; l < k; l++) {
      const N left = x.a[i][l];
      for (uint32_t j = 0; j < n; j += 8)
        for (uint32_t e = 0; e < 8; e++) x.c[i][j + e] += left * x.b[l][j + e];
    }
}

template <class N, tm_element A, tm_element B>
inline void gather_mma(Operands<N> &x, Product **p, const tm_product &s) {
  const uint32_t packed = std::max(1u, 4 / bytes_of(A)), tall = s.m / 8, deep = s.k / (4 * packed);
  for (uint32_t lane = 0; lane < 32; lane++) {
    const uint32_t group = lane / 4, within = lane % 4;
    uint32_t slot = 0;
    for (uint32_t kb = 0; kb < deep; kb++)
      for (uint32_t mb = 0; mb < tall; mb++)
        for (uint32_t e = 0; e < packed; e++)
          x.a[mb * 8 + group][(kb * 4 + within) * packed + e] = element_at<N>(p[lane]->a, slot++, A);
    slot = 0;
    for (uint32_t kb = 0; kb < deep; kb++)
      for (uint32_t e = 0; e < packed; e++)
        x.b[(kb * 4 + within) * packed + e][group] = element_at<N>(p[lane]->b, slot++, B);
  }
}

/* Reads or writes fragments of c: element (mb * 8 + lane / 4, lane mod 4 * 2 + e) is slot mb * 2 + e. */
template <class N, tm_element C, bool Write>
inline void move_mma_result(Operands<N> &x, Product **p, const tm_product &s) {
  for (uint32_t lane = 0; lane < 32; lane++)
    for (uint32_t slot = 0; slot < s.m / 4; slot++) {
      N &element = x.c[slot / 2 * 8 + lane / 4][lane % 4 * 2 + slot % 2];
      if (Write) put_element<N>(p[lane]->c, slot, C, element);
      else element = element_at<N>(p[lane]->c, slot, C);
    }
}

template <class N, tm_element A, tm_element B, tm_element C>
inline void multiply_mma(Product **p, const tm_product &s) {
  Operands<N> x;
  gather_mma<N, A, B>(x, p, s);
  move_mma_result<N, C, false>(x, p, s);
  multiply(x, s.m, s.n, s.k);
  move_mma_result<N, C, true>(x, p, s);
}

inline void count_product(Worker &w, const tm_product &s) {
  if (!w.counted) return;
  w.counters.tensor_operations += 2ull * s.m * s.n * s.k;
  w.counters.tensor_bytes += 2ull * s.m * s.n * s.k * bytes_of(s.a);
}

#define TM_CASE(N, A, B, C) \
  if (s.a == tm_is_##A && s.b == tm_is_##B && s.c == tm_is_##C) return multiply_mma<N, tm_is_##A, tm_is_##B, tm_is_##C>(p, s);

inline void run_mma(Worker &w, void **operands, uint32_t, uint32_t) {
  Product **p = reinterpret_cast<Product **>(operands);
  const tm_product &s = *p[0]->shape;
  count_product(w, s);
  TM_CASE(float, f16, f16, f32)
  TM_CASE(float, bf16, bf16, f32)
  TM_CASE(float, f16, f16, f16)
  TM_CASE(float, tf32, tf32, f32)
  TM_CASE(uint32_t, i8, i8, i32)
  TM_CASE(uint32_t, i8, u8, i32)
  TM_CASE(uint32_t, u8, i8, i32)
  TM_CASE(uint32_t, u8, u8, i32)
  TM_CASE(float, e4m3, e4m3, f32)
  TM_CASE(float, e4m3, e5m2, f32)
  TM_CASE(float, e5m2, e4m3, f32)
  TM_CASE(float, e5m2, e5m2, f32)
  TM_CASE(double, f64, f64, f64)
}
#undef TM_CASE

inline const Instruction kMma = {"mma", tm_kind_mma, true, run_mma};

/* Reads or writes a quad-pair's fragment of c, 8 elements of each lane. PTX ISA, "mma.m8n8k4". */
template <bool Write>
inline void move_quad_result(Operands<float> &x, Product **p, uint32_t pair, tm_element type) {
  for (uint32_t member = 0; member < 8; member++) {
    const uint32_t lane = member / 4 * 16 + pair * 4 + member % 4;
    for (uint32_t i = 0; i < 8; i++) {
      const bool whole = type == tm_is_f16; /* a lane holds a row; in f32, parts of two rows */
      const uint32_t row = whole ? member : member / 4 * 4 + (member & 1) + (i & 2);
      float &element = x.c[row][whole ? i : (i & 4) + (member & 2) + (i & 1)];
      if (Write) put_element<float>(p[lane]->c, i, type, element);
      else element = element_at<float>(p[lane]->c, i, type);
    }
  }
}

/* Four products of 8x8x4, each by eight lanes. */
inline void run_quad_mma(Worker &w, void **operands, uint32_t, uint32_t) {
  Product **p = reinterpret_cast<Product **>(operands);
  const tm_product &s = *p[0]->shape;
  count_product(w, s);
  for (uint32_t pair = 0; pair < 4; pair++) {
    Operands<float> x;
    for (uint32_t member = 0; member < 8; member++) {
      const uint32_t lane = member / 4 * 16 + pair * 4 + member % 4;
      for (uint32_t i = 0; i < 4; i++) {
        x.a[member][i] = element_at<float>(p[lane]->a, i, s.a);
        x.b[i][member] = element_at<float>(p[lane]->b, i, s.b);
      }
    }
    move_quad_result<false>(x, p, pair, s.c);
    multiply(x, 8, 8, 4);
    move_quad_result<true>(x, p, pair, s.c);
  }
}

inline const Instruction kQuadMma = {"mma of quad-pairs", tm_kind_mma, true, run_quad_mma};

/* The layout of a fragment of wmma: lane l has `slots` neighbours of one row (of a and c) or column (of b). */
struct Fragment {
  uint32_t rows, columns, slots;
  bool down; /* neighbours follow each other down a column */

  Fragment(const tm_product &s, uint32_t operand, tm_element type) {
    rows = operand == 1 ? s.k : s.m;
    columns = operand == 0 ? s.k : s.n;
    down = operand == 1;
    slots = type == tm_is_f16 && operand != 2 ? 16 : rows * columns / 32;
  }
  /* The position of a lane's first element. */
  void first(uint32_t lane, uint32_t &row, uint32_t &column) const {
    const uint32_t across = (down ? rows : columns) / slots, lines = down ? columns : rows;
    const uint32_t at = lane % (across * lines);
    row = down ? at / lines * slots : at / across;
    column = down ? at % lines : at % across * slots;
  }
};

template <class N>
inline void move_fragment(N (&matrix)[kMost][kMost], const Fragment &f, uint32_t lane, void *registers,
                          tm_element type, bool write) {
  uint32_t row, column;
  f.first(lane, row, column);
  for (uint32_t i = 0; i < f.slots; i++) {
    N &element = matrix[row + (f.down ? i : 0)][column + (f.down ? 0 : i)];
    if (write) put_element<N>(registers, i, type, element);
    else element = element_at<N>(registers, i, type);
  }
}

template <class N>
inline void multiply_wmma(Product **p, const tm_product &s) {
  Operands<N> x;
  const Fragment a(s, 0, s.a), b(s, 1, s.b), c(s, 2, s.c);
  for (uint32_t lane = 0; lane < 32; lane++) {
    move_fragment(x.a, a, lane, const_cast<void *>(p[lane]->a), s.a, false);
    move_fragment(x.b, b, lane, const_cast<void *>(p[lane]->b), s.b, false);
    move_fragment(x.c, c, lane, p[lane]->c, s.c, false);
  }
  multiply(x, s.m, s.n, s.k);
  for (uint32_t lane = 0; lane < 32; lane++) move_fragment(x.c, c, lane, p[lane]->c, s.c, true);
}

inline void run_wmma(Worker &w, void **operands, uint32_t, uint32_t) {
  Product **p = reinterpret_cast<Product **>(operands);
  const tm_product &s = *p[0]->shape;
  count_product(w, s);
  if (s.c == tm_is_i32) multiply_wmma<uint32_t>(p, s);
  else multiply_wmma<float>(p, s);
}

inline const Instruction kWmma = {"wmma", tm_kind_wmma, true, run_wmma};

struct FragmentMove {
  Fiber *lane;
  const tm_product *shape;
  uint32_t operand, store, stride, by_columns;
  char *registers, *memory;
  const tm_bounds *bounds;
};

inline void move_wmma(Worker &w, void **operands, uint32_t, uint32_t line) {
  FragmentMove **x = reinterpret_cast<FragmentMove **>(operands);
  for (uint32_t lane = 0; lane < 32; lane++) {
    const FragmentMove &m = *x[lane];
    const tm_element type = m.shape->c;
    const uint32_t size = bytes_of(type);
    const Access access = access_of(*m.lane, site_of_line(line));
    const Fragment f(*m.shape, m.operand, type);
    uint32_t row, column;
    f.first(lane, row, column);
    for (uint32_t i = 0; i < f.slots; i++) {
      const uint64_t r = row + (f.down ? i : 0), c = column + (f.down ? 0 : i);
      char *at = m.memory + (m.by_columns ? c * m.stride + r : r * m.stride + c) * size;
      if (w.checked && !check_access(w, access, {at, size, m.bounds, m.store != 0}, size)) continue;
      if (m.store) memcpy(at, m.registers + i * size, size);
      else memcpy(m.registers + i * size, at, size);
    }
    if (!w.checked || lane) continue;
    if (reinterpret_cast<uintptr_t>(m.memory) % 32 || m.stride * size % 16)
      w.report->add(kMisaligned, w.place(*m.lane, site_of_line(line)), nullptr,
                    "a fragment of wmma at an address that is no multiple of 32 bytes, or rows that are none of 16");
  }
}

inline const Instruction kWmmaMove = {"a load or store of wmma", tm_kind_wmma, true, move_wmma};

}  // namespace sim

extern "C" {

TM_EXPORT void tm_sim_mma(const tm_product *shape, void *c, const void *a, const void *b, tm_u32 line) {
  sim::Product p{shape, c, a, b};
  sim::meet_in_warp(*sim::worker, sim::kMma, &p, ~0u, line);
}

TM_EXPORT void tm_sim_quad_mma(const tm_product *shape, void *c, const void *a, const void *b, tm_u32 line) {
  sim::Product p{shape, c, a, b};
  sim::meet_in_warp(*sim::worker, sim::kQuadMma, &p, ~0u, line);
}

TM_EXPORT void tm_sim_wmma(const tm_product *shape, void *c, const void *a, const void *b, tm_u32 line) {
  sim::Product p{shape, c, a, b};
  sim::meet_in_warp(*sim::worker, sim::kWmma, &p, ~0u, line);
}

TM_EXPORT void tm_sim_wmma_move(const tm_product *shape, tm_u32 operand, tm_u32 store, void *fragment, void *memory,
                                const tm_bounds *bounds, tm_u32 stride, tm_u32 by_columns, tm_u32 line) {
  sim::FragmentMove m{sim::worker->current, shape, operand, store, stride, by_columns,
                      static_cast<char *>(fragment), static_cast<char *>(memory), bounds};
  sim::meet_in_warp(*sim::worker, sim::kWmmaMove, &m, ~0u, line);
}
}
