/* After portable.cuh: its functions that take any type, for elements in memory. A GPU has no such thing as an element
 * that is not loaded yet, so only the simulator needs them. */
#pragma once

#if TM_CHECKED
TM_OF_ELEMENT_1(reciprocal) TM_OF_ELEMENT_1(sigmoid) TM_OF_ELEMENT_1(sign) TM_OF_ELEMENT_1(isnan)
TM_OF_ELEMENT_1(isfinite) TM_OF_ELEMENT_1(isinf) TM_OF_ELEMENT_1(signbit) TM_OF_ELEMENT_1(digamma)
TM_OF_ELEMENT_1(neg) TM_OF_ELEMENT_1(not) TM_OF_ELEMENT_1(abs)
TM_OF_ELEMENT_2(remainder) TM_OF_ELEMENT_2(floor_div) TM_OF_ELEMENT_2(min) TM_OF_ELEMENT_2(max)
TM_OF_ELEMENT_2(add) TM_OF_ELEMENT_2(sub) TM_OF_ELEMENT_2(mul) TM_OF_ELEMENT_2(floordiv) TM_OF_ELEMENT_2(mod)
TM_OF_ELEMENT_2(shl) TM_OF_ELEMENT_2(shr) TM_OF_ELEMENT_2(and) TM_OF_ELEMENT_2(or) TM_OF_ELEMENT_2(xor)

template <int N, class T> inline tm_vec<T, N> tm_splat(const tm_element_of<T> &x) {
  return tm_splat<N>(static_cast<T>(x));
}
template <class To, class T> inline To tm_cast(const tm_element_of<T> &x) { return tm_cast<To>(static_cast<T>(x)); }
#endif
