/* Types, pointers, vectors and plain memory accesses of kernels on the host. With TM_CHECKED a pointer knows its bounds
 * and reports every access to the engine; without it, pointers are plain. */
#pragma once
#include "abi.h"

#ifndef TM_CHECKED
#define TM_CHECKED 1
#endif

#define __global__
#define __device__ inline
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __cluster_dims__(...)

#define threadIdx (tm_self->thread)
#define blockIdx (tm_self->block)
#define blockDim (tm_self->block_dim)
#define gridDim (tm_self->grid_dim)

#define TM_FN inline

template <class T> struct tm_plain { using type = T; };
template <class T> struct tm_plain<const T> { using type = T; };

template <class To, class From> inline To tm_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "tm_bits keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

/* Grids run one after the other. */
inline void tm_after_previous_grid() {}

inline float tm_inf() { return __builtin_inff(); }
inline float tm_nan() { return tm_bits<float>(0x7fc00000u); }

/* 16-bit floats are stored as such and computed in float. */
struct tm_f16 {
  unsigned short bits;
  tm_f16() = default;
  explicit tm_f16(float x) : bits(tm_bits<unsigned short>(static_cast<_Float16>(x))) {}
};
struct tm_bf16 {
  unsigned short bits;
  tm_bf16() = default;
  explicit tm_bf16(float x) {
    const tm_u32 u = tm_bits<tm_u32>(x);
    bits = x != x ? 0x7fff : static_cast<unsigned short>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
};
inline float tm_value(tm_f16 x) { return static_cast<float>(tm_bits<_Float16>(x.bits)); }
inline float tm_value(tm_bf16 x) { return tm_bits<float>(static_cast<tm_u32>(x.bits) << 16); }

/* 8-bit floats: portable.cuh converts them. */
struct tm_e4m3 { unsigned char bits; };
struct tm_e5m2 { unsigned char bits; };

template <class T, int N> struct tm_vec {
  T lane[N];
  T &operator[](int i) { return lane[i]; }
  const T &operator[](int i) const { return lane[i]; }
};

#define TM_MATH_1(name) \
  float name##f(float); \
  double name(double);
#define TM_MATH_2(name)        \
  float name##f(float, float); \
  double name(double, double);
extern "C" {
TM_MATH_1(exp) TM_MATH_1(exp2) TM_MATH_1(expm1) TM_MATH_1(log) TM_MATH_1(log2) TM_MATH_1(log10) TM_MATH_1(log1p)
TM_MATH_1(sin) TM_MATH_1(cos) TM_MATH_1(tan) TM_MATH_1(asin) TM_MATH_1(acos) TM_MATH_1(atan) TM_MATH_1(sinh)
TM_MATH_1(cosh) TM_MATH_1(tanh) TM_MATH_1(asinh) TM_MATH_1(acosh) TM_MATH_1(atanh) TM_MATH_1(erf) TM_MATH_1(erfc)
TM_MATH_1(lgamma) TM_MATH_1(sqrt) TM_MATH_1(floor) TM_MATH_1(ceil) TM_MATH_1(trunc) TM_MATH_1(rint) TM_MATH_1(fabs)
TM_MATH_2(pow) TM_MATH_2(atan2) TM_MATH_2(fmod) TM_MATH_2(fmin) TM_MATH_2(fmax) TM_MATH_2(copysign) TM_MATH_2(hypot)
extern "C" float fmaf(float, float, float);
extern "C" double fma(double, double, double);
}
#undef TM_MATH_1
#undef TM_MATH_2

/* What CUDA has and <math.h> lacks. */
inline float rsqrtf(float x) { return static_cast<float>(1 / sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1 / sqrt(x); }

/* Giles, "Approximating the erfinv function", GPU Computing Gems, then two steps of Newton's method. */
inline double erfinv(double x) {
  if (!(x > -1 && x < 1)) return x == 1 || x == -1 ? x * __builtin_inf() : __builtin_nan("");
  const double w = -log((1 - x) * (1 + x));
  const double s = sqrt(w);
  double y = w < 5 ? x * (1.50140941 + (w - 2.5) * (0.246640727 + (w - 2.5) * (-0.00417768164 - (w - 2.5) * 0.00125372503)))
                   : x * (2.83297682 + (s - 3) * (1.00167406 + (s - 3) * 0.00943887047));
  for (int i = 0; i < 4; i++) {
    const double rest = x < 0 ? erfc(-y) - (1 + x) : (1 - x) - erfc(y);
    const double step = rest * 0.88622692545275801365 * exp(y * y);
    y -= step / (1 + y * step);
  }
  return y;
}
inline float erfinvf(float x) { return static_cast<float>(erfinv(static_cast<double>(x))); }

#if TM_CHECKED

/* An element in memory: reading and assigning it are checked accesses. */
template <class T>
class tm_element_of {
 public:
  tm_element_of(T *at, const tm_bounds *bounds) : at_(at), bounds_(bounds) {}
  operator T() const { return *static_cast<const T *>(tm_sim_read(at_, sizeof(T), bounds_, 0)); }
  const tm_element_of &operator=(T value) const {
    *static_cast<T *>(tm_sim_write(at_, sizeof(T), bounds_, 0)) = value;
    return *this;
  }
  const tm_element_of &operator=(const tm_element_of &other) const { return *this = static_cast<T>(other); }
  const tm_element_of &operator+=(T value) const { return *this = static_cast<T>(*this) + value; }
  const tm_element_of &operator-=(T value) const { return *this = static_cast<T>(*this) - value; }
  const tm_element_of &operator*=(T value) const { return *this = static_cast<T>(*this) * value; }

 private:
  T *at_;
  const tm_bounds *bounds_;
};

/* A checked pointer. Space keeps pointers into shared and global memory apart, as their instructions are. */
template <class T, int Space>
class tm_pointer {
 public:
  typedef T element;
  typedef typename tm_plain<T>::type value;
  tm_pointer() : at(0), bounds(0) {}
  tm_pointer(T *at_, const tm_bounds *bounds_) : at(at_), bounds(bounds_) {}
  template <class U>
  tm_pointer(const tm_pointer<U, Space> &other) : at(other.at), bounds(other.bounds) {}
  tm_pointer operator+(long long n) const { return tm_pointer(at + n, bounds); }
  tm_pointer operator-(long long n) const { return tm_pointer(at - n, bounds); }
  tm_pointer &operator+=(long long n) { at += n; return *this; }
  tm_pointer &operator-=(long long n) { at -= n; return *this; }
  bool operator==(const tm_pointer &other) const { return at == other.at; }
  bool operator!=(const tm_pointer &other) const { return at != other.at; }
  explicit operator bool() const { return at != 0; }
  decltype(auto) operator[](long long i) const { return access(at + i, tm_kind_of<T>()); }
  decltype(auto) operator*() const { return access(at, tm_kind_of<T>()); }

  T *at;
  const tm_bounds *bounds;

 private:
  template <class U>
  struct tm_kind_of {};
  template <class U>
  value access(const U *p, tm_kind_of<const U>) const {
    return *static_cast<const U *>(tm_sim_read(p, sizeof(U), bounds, 0));
  }
  template <class U>
  tm_element_of<U> access(U *p, tm_kind_of<U>) const {
    return tm_element_of<U>(p, bounds);
  }
};

template <class T>
using tm_global = tm_pointer<T, 0>;
template <class T>
using tm_shared = tm_pointer<T, 1>;

template <class T>
inline tm_shared<T> tm_shared_at(long long offset, long long elements = -1, tm_u32 line = TM_LINE) {
  const tm_u64 bytes = elements < 0 ? ~0ull : sizeof(T) * (tm_u64)elements;
  return tm_shared<T>((T *)(tm_self->shared + offset), tm_sim_shared_bounds(offset, bytes, line));
}
template <class U, class T, int Space>
inline tm_pointer<U, Space> tm_pointer_cast(tm_pointer<T, Space> p) {
  return tm_pointer<U, Space>((U *)p.at, p.bounds);
}

template <class T>
inline T *tm_address(tm_pointer<T, 0> p) { return p.at; }
template <class T>
inline T *tm_address(tm_pointer<T, 1> p) { return p.at; }
template <class T, int Space>
inline const tm_bounds *tm_bounds_of(tm_pointer<T, Space> p) { return p.bounds; }

/* N neighbours, whose address is a multiple of Aligned elements: as many accesses as the GPU needs. */
template <int N, int Aligned = N, class T, int Space>
inline tm_vec<typename tm_plain<T>::type, N> tm_load(tm_pointer<T, Space> p, tm_u32 line = TM_LINE) {
  constexpr int word = Aligned * sizeof(T) < 16 ? Aligned * sizeof(T) : 16;
  tm_vec<typename tm_plain<T>::type, N> result;
  for (int i = 0; i < int(N * sizeof(T)) / word; i++)
    __builtin_memcpy((char *)&result + i * word, tm_sim_read((const char *)p.at + i * word, word, p.bounds, line), word);
  return result;
}
template <int Aligned, class T, int N, int Space>
inline void tm_store_aligned(tm_pointer<T, Space> p, const tm_vec<T, N> &v, tm_u32 line = TM_LINE) {
  constexpr int word = Aligned * sizeof(T) < 16 ? Aligned * sizeof(T) : 16;
  for (int i = 0; i < int(N * sizeof(T)) / word; i++)
    __builtin_memcpy(tm_sim_write((char *)p.at + i * word, word, p.bounds, line), (const char *)&v + i * word, word);
}
template <class T, int N, int Space>
inline void tm_store(tm_pointer<T, Space> p, const tm_vec<T, N> &v, tm_u32 line = TM_LINE) {
  tm_store_aligned<N>(p, v, line);
}

/* Functions that take any type take an element in memory as its value. */
template <class T> inline T tm_value(const tm_element_of<T> &x) { return x; }
template <int N, class T> inline tm_vec<T, N> tm_splat(const tm_element_of<T> &x);
template <class To, class T> inline To tm_cast(const tm_element_of<T> &x);
#define TM_OF_ELEMENT_1(name) \
  template <class T> inline auto tm_##name(const tm_element_of<T> &x) { return tm_##name(static_cast<T>(x)); }
#define TM_OF_ELEMENT_2(name)                                                                                       \
  template <class T> inline T tm_##name(const tm_element_of<T> &x, T y) { return tm_##name(static_cast<T>(x), y); } \
  template <class T> inline T tm_##name(T x, const tm_element_of<T> &y) { return tm_##name(x, static_cast<T>(y)); } \
  template <class T> inline T tm_##name(const tm_element_of<T> &x, const tm_element_of<T> &y) {                    \
    return tm_##name(static_cast<T>(x), static_cast<T>(y));                                                        \
  }

template <class T>
struct tm_parameter {
  static T from(const void *p) {
    T value;
    __builtin_memcpy(&value, p, sizeof value); /* the host's copy need not be aligned as T */
    return value;
  }
};
template <class T, int Space>
struct tm_parameter<tm_pointer<T, Space>> {
  static tm_pointer<T, Space> from(const void *p) {
    const tm_argument *a = static_cast<const tm_argument *>(p);
    return tm_pointer<T, Space>((T *)a->address, a->bounds);
  }
};

#else

template <class T>
using tm_global = T *;
template <class T>
using tm_shared = T *;

template <class T>
inline T *tm_shared_at(long long offset, long long = 0) {
  return (T *)(tm_self->shared + offset);
}
template <class U, class T>
inline U *tm_pointer_cast(T *p) { return (U *)p; }
template <class T>
inline T *tm_address(T *p) { return p; }
template <class T>
inline const tm_bounds *tm_bounds_of(T *) { return 0; }

template <int N, int Aligned = N, class T>
inline tm_vec<typename tm_plain<T>::type, N> tm_load(T *p) {
  tm_vec<typename tm_plain<T>::type, N> result;
  __builtin_memcpy(&result, p, sizeof(T) * N);
  return result;
}
template <int Aligned, class T, int N>
inline void tm_store_aligned(T *p, const tm_vec<T, N> &v) { __builtin_memcpy(p, &v, sizeof(T) * N); }
template <class T, int N>
inline void tm_store(T *p, const tm_vec<T, N> &v) { __builtin_memcpy(p, &v, sizeof(T) * N); }

template <class T>
struct tm_parameter {
  static T from(const void *p) {
    T value;
    __builtin_memcpy(&value, p, sizeof value); /* the host's copy need not be aligned as T */
    return value;
  }
};
template <class T>
struct tm_parameter<T *> {
  static T *from(const void *p) { return (T *)static_cast<const tm_argument *>(p)->address; }
};

#endif

inline void tm_barrier(tm_u32 line = TM_LINE) { tm_sim_barrier(line); }

/* The value of what may be an element in memory. */
template <class T> struct tm_loaded { using type = T; };
#if TM_CHECKED
template <class T> struct tm_loaded<tm_element_of<T>> { using type = T; };
template <class T> struct tm_loaded<const tm_element_of<T>> { using type = T; };
#endif

/* Calls a kernel with parameters taken from an array of pointers, each to what tm_parameter reads. */
template <class... P>
struct tm_parameters {};
template <int... I>
struct tm_numbers {};
template <int N, int... I>
struct tm_count : tm_count<N - 1, N - 1, I...> {};
template <int... I>
struct tm_count<0, I...> {
  typedef tm_numbers<I...> type;
};
template <class... P, int... I>
inline void tm_call_with(void (*kernel)(P...), const void *const *arguments, tm_numbers<I...>) {
  kernel(tm_parameter<P>::from(arguments[I])...);
}
template <class... P>
inline void tm_call(void (*kernel)(P...), const void *const *arguments) {
  tm_call_with(kernel, arguments, typename tm_count<sizeof...(P)>::type());
}
