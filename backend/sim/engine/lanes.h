/* Exchanges between the lanes of a warp: shuffles, votes, reductions; matrices between shared memory and registers.
 * Source of the meaning: PTX ISA 9.0, "shfl.sync", "vote.sync", "redux.sync", "elect.sync", "ldmatrix", "stmatrix". */
#pragma once
#include "sync.h"

namespace sim {

struct Exchanged {
  uint64_t value, result;
  int other;
  uint32_t width, how;
};

inline uint32_t shuffle_source(const Exchanged &x, uint32_t lane) {
  const uint32_t base = lane & ~(x.width - 1), last = base | (x.width - 1), by = uint32_t(x.other) & 31;
  switch (x.how) {
    case tm_shuffles_idx: return base | (by & (x.width - 1));
    case tm_shuffles_up: return lane >= base + by ? lane - by : lane;
    case tm_shuffles_down: return lane + by <= last ? lane + by : lane;
    default: return (lane ^ by) <= last ? lane ^ by : lane;
  }
}

inline void shuffle(Worker &, void **operands, uint32_t, uint32_t) {
  Exchanged **x = reinterpret_cast<Exchanged **>(operands);
  for (uint32_t lane = 0; lane < 32; lane++) x[lane]->result = x[shuffle_source(*x[lane], lane)]->value;
}

inline void vote(Worker &, void **operands, uint32_t mask, uint32_t) {
  Exchanged **x = reinterpret_cast<Exchanged **>(operands);
  uint32_t ballot = 0;
  for (uint32_t lane = 0; lane < 32; lane++) ballot |= uint32_t(x[lane]->value != 0) << lane;
  for (uint32_t lane = 0; lane < 32; lane++) {
    switch (x[lane]->how) {
      case tm_votes_any: x[lane]->result = ballot != 0; break;
      case tm_votes_all: x[lane]->result = ballot == mask; break;
      case tm_votes_elect: x[lane]->result = lane == 0; break;
      default: x[lane]->result = ballot;
    }
  }
}

inline void reduce(Worker &, void **operands, uint32_t, uint32_t) {
  Exchanged **x = reinterpret_cast<Exchanged **>(operands);
  uint32_t total = uint32_t(x[0]->value);
  for (uint32_t lane = 1; lane < 32; lane++) {
    const uint32_t v = uint32_t(x[lane]->value);
    switch (x[0]->how) {
      case tm_reduces_add: total += v; break;
      case tm_reduces_min: total = uint32_t(std::min(int32_t(total), int32_t(v))); break;
      case tm_reduces_max: total = uint32_t(std::max(int32_t(total), int32_t(v))); break;
      case tm_reduces_and: total &= v; break;
      case tm_reduces_or: total |= v; break;
      default: total ^= v;
    }
  }
  for (uint32_t lane = 0; lane < 32; lane++) x[lane]->result = total;
}

inline const Instruction kShuffle = {"a shuffle", tm_kind_shuffle, true, shuffle};
inline const Instruction kVote = {"a vote", tm_kind_vote, true, vote};
inline const Instruction kReduce = {"a reduction of a warp", tm_kind_vote, true, reduce};

struct Matrices {
  Fiber *lane;
  char *registers, *row;
  const tm_bounds *bounds;
  uint32_t count, transposed;
};

/* Copies the 4 bytes of each matrix that a lane holds; rows[i][r] is row r of matrix i. */
template <bool Store>
inline void move_matrices(Worker &w, void **operands, uint32_t, uint32_t line) {
  Matrices **x = reinterpret_cast<Matrices **>(operands);
  const uint32_t count = x[0]->count;
  static char nowhere[16];
  char *rows[4][8];
  for (uint32_t i = 0; i < 8 * count; i++) {
    rows[i / 8][i % 8] = x[i]->row;
    if (!w.checked) continue;
    const Access access = access_of(*x[i]->lane, site_of_line(line));
    if (!check_access(w, access, {x[i]->row, 16, x[i]->bounds, Store}, 16)) rows[i / 8][i % 8] = nowhere;
  }
  if (w.counted) {
    for (uint32_t i = 0; i < count; i++) count_rows(w, rows[i], Store);
  }
  auto move = [](char *memory, char *registers, size_t bytes) {
    if (Store) memcpy(memory, registers, bytes);
    else memcpy(registers, memory, bytes);
  };
  for (uint32_t lane = 0; lane < 32; lane++) {
    for (uint32_t i = 0; i < count; i++) {
      char *r = x[lane]->registers + 4 * i;
      if (!x[0]->transposed) {
        move(rows[i][lane / 4] + 4 * (lane % 4), r, 4);
        continue;
      }
      move(rows[i][2 * (lane % 4)] + 2 * (lane / 4), r, 2);
      move(rows[i][2 * (lane % 4) + 1] + 2 * (lane / 4), r + 2, 2);
    }
  }
}

inline const Instruction kLdmatrix[2] = {{"ldmatrix", tm_kind_ldmatrix, true, move_matrices<false>},
                                         {"ldmatrix.trans", tm_kind_ldmatrix, true, move_matrices<false>}};
inline const Instruction kStmatrix[2] = {{"stmatrix", tm_kind_stmatrix, true, move_matrices<true>},
                                         {"stmatrix.trans", tm_kind_stmatrix, true, move_matrices<true>}};

}  // namespace sim

extern "C" {

TM_EXPORT tm_u64 tm_sim_exchange(tm_u32 how, tm_u64 value, int other, tm_u32 width, tm_u32 line) {
  using namespace sim;
  Exchanged x{value, 0, other, width, how};
  const Instruction &instruction = how <= tm_shuffles_xor ? kShuffle : how <= tm_votes_elect ? kVote : kReduce;
  meet_in_warp(*worker, instruction, &x, ~0u, line);
  return x.result;
}

TM_EXPORT void tm_sim_matrices(tm_u32 count, tm_u32 transposed, tm_u32 store, void *registers, void *row,
                               const tm_bounds *bounds, tm_u32 line) {
  using namespace sim;
  Worker &w = *worker;
  Matrices x{w.current, static_cast<char *>(registers), static_cast<char *>(row), bounds, count, transposed};
  meet_in_warp(w, (store ? kStmatrix : kLdmatrix)[transposed], &x, ~0u, line);
}
}
