/* Elements of tensor instructions as float, double or int, and back. */
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../device/abi.h"

namespace sim {

inline float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

/* An 8-bit float with these bits of exponent and mantissa; the format says which patterns are infinite or NaN. */
inline float float_of_e4m3(uint8_t v) {
  const int exponent = v >> 3 & 15, mantissa = v & 7;
  float x = exponent == 15 && mantissa == 7 ? NAN
            : exponent                      ? std::ldexp(float(8 + mantissa), exponent - 10)
                                            : std::ldexp(float(mantissa), -9);
  return v & 0x80 ? -x : x;
}
inline float float_of_e5m2(uint8_t v) {
  const int exponent = v >> 2 & 31, mantissa = v & 3;
  float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
            : exponent     ? std::ldexp(float(4 + mantissa), exponent - 17)
                           : std::ldexp(float(mantissa), -16);
  return v & 0x80 ? -x : x;
}

inline float float_of_f16(uint16_t bits) {
  _Float16 h;
  memcpy(&h, &bits, 2);
  return float(h);
}
inline uint16_t f16_of_float(float x) {
  const _Float16 h = _Float16(x);
  uint16_t bits;
  memcpy(&bits, &h, 2);
  return bits;
}
inline float float_of_bf16(uint16_t bits) { return float_of_bits(uint32_t(bits) << 16); }
inline uint16_t bf16_of_float(float x) {
  const uint32_t u = bits_of_float(x);
  return x != x ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline uint32_t bytes_of(tm_element type) {
  switch (type) {
    case tm_is_f64: return 8;
    case tm_is_tf32: case tm_is_f32: case tm_is_i32: return 4;
    case tm_is_f16: case tm_is_bf16: return 2;
    default: return 1;
  }
}

/* Element `i` of an array of this type, as the accumulator's type N. Tensor cores ignore the low bits of tf32. */
template <class N>
inline N element_at(const void *array, uint32_t i, tm_element type) {
  const char *at = static_cast<const char *>(array) + size_t(i) * bytes_of(type);
  uint16_t half;
  uint32_t word;
  double wide;
  int32_t whole;
  float single;
  switch (type) {
    case tm_is_f16: memcpy(&half, at, 2); return N(float_of_f16(half));
    case tm_is_bf16: memcpy(&half, at, 2); return N(float_of_bf16(half));
    case tm_is_tf32: memcpy(&word, at, 4); return N(float_of_bits(word & 0xffffe000u));
    case tm_is_f32: memcpy(&single, at, 4); return N(single);
    case tm_is_f64: memcpy(&wide, at, 8); return N(wide);
    case tm_is_i32: memcpy(&whole, at, 4); return N(whole);
    case tm_is_i8: return N(*reinterpret_cast<const int8_t *>(at));
    case tm_is_u8: return N(*reinterpret_cast<const uint8_t *>(at));
    case tm_is_e4m3: return N(float_of_e4m3(uint8_t(*at)));
    default: return N(float_of_e5m2(uint8_t(*at)));
  }
}

template <class N>
inline void put_element(void *array, uint32_t i, tm_element type, N value) {
  char *at = static_cast<char *>(array) + size_t(i) * bytes_of(type);
  const float single = float(value);
  const double wide = double(value);
  const int32_t whole = int32_t(value);
  const uint16_t half = type == tm_is_f16 ? f16_of_float(single) : 0;
  switch (type) {
    case tm_is_f16: memcpy(at, &half, 2); return;
    case tm_is_f64: memcpy(at, &wide, 8); return;
    case tm_is_i32: memcpy(at, &whole, 4); return;
    default: memcpy(at, &single, 4);
  }
}

}  // namespace sim
