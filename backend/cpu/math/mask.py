"""Masks: conversion between widths and to bytes, negation, and the tests "any" and "all"."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.backend.cpu.math.types import Vector

_ANY = """\
TM_INLINE int tm_any_$V($V m) {
  union { u64 bits; $V m; } u = {0};
  u.m = m;
  return u.bits != 0;
}"""


def convert_mask(source: Vector, target: Vector) -> str:
    """Body of the conversion of `x` between masks of any width and `b8`, the bytes 0 and 1 of a bool in memory."""
    if source.dtype == target.dtype:
        return "return x;"
    if source.lanes == 1:
        return "return x != 0;"
    if source.dtype == "b8":
        return f"return tm_mask_{source.mask.name}_to_{target.name}(x != 0);" if target.bits > 8 else "return x != 0;"
    if target.dtype == "b8":
        if source.bits > 8:
            narrow = target.mask.name
            return f"return tm_mask_{narrow}_to_{target.name}(tm_mask_{source.name}_to_{narrow}(x));"
        return f"return ({target.name})x & 1;"
    step = source.of(f"m{source.bits * 2 if source.bits < target.bits else source.bits // 2}")
    if step == target:
        return f"return __builtin_convertvector(x, {target.name});"
    return f"return tm_mask_{step.name}_to_{target.name}(tm_mask_{source.name}_to_{step.name}(x));"


COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def comparison(op: str) -> Callable[[Vector, int], str]:
    """`tm_lt_V(x, y)` and its like: a mask. A vector of several registers is compared by halves, because gcc would
    compare it lane by lane."""

    def text(v: Vector, vector_bytes: int) -> str:
        value = f"($M)(x {COMPARISONS[op]} y)"
        if v.lanes > 1 and v.bytes > vector_bytes:
            halves = (f"tm_{op}_$H(tm_{part}_$V(x), tm_{part}_$V(y))" for part in ("lo", "hi"))
            value = f"tm_join_$M({', '.join(halves)})"
        return v.render(f"TM_INLINE $M tm_{op}_$V($V x, $V y) {{ return {value}; }}")

    return text


_CHECKED = """\
TM_INLINE $V tm_checked_index_$V($V i, $V n, int *error) {
  i = tm_select_$V(i < 0, i + n, i);
  $M outside = ($M)(($U)i >= ($U)n);
  if (__builtin_expect(tm_any_$M(outside), 0)) {
    *error = 1;
    i = tm_select_$V(outside, i - i, i);
  }
  return i;
}"""
_CHECKED_HALVES = """\
TM_INLINE $V tm_checked_index_$V($V i, $V n, int *error) {
  $H lo = tm_checked_index_$H(tm_lo_$V(i), tm_lo_$V(n), error);
  return tm_join_$V(lo, tm_checked_index_$H(tm_hi_$V(i), tm_hi_$V(n), error));
}"""


def checked_index(v: Vector, vector_bytes: int) -> str:
    """`tm_checked_index_V(i, n, error)`: indices that may count from the end of n elements; one that is out of range
    sets the error and becomes 0."""
    return v.render(_CHECKED_HALVES if v.lanes > 1 and v.bytes > vector_bytes else _CHECKED)


def invert(v: Vector, vector_bytes: int) -> str:
    """`tm_not_M(m)`: the lanes in which m is not set."""
    return v.render("TM_INLINE $V tm_not_$V($V m) { return $value; }", value="!m" if v.lanes == 1 else "~m")


def any_lane(v: Vector, vector_bytes: int) -> str:
    """`tm_any_M(m)`: 1 if some lane is set, else 0."""
    if v.lanes == 1:
        return v.render("TM_INLINE int tm_any_$V($V m) { return m; }")
    if v.bytes <= 8:
        return v.render(_ANY)
    return v.render("TM_INLINE int tm_any_$V($V m) { return tm_any_$H(tm_lo_$V(m) | tm_hi_$V(m)); }")


def all_lanes(v: Vector, vector_bytes: int) -> str:
    """`tm_all_M(m)`: 1 if every lane is set, else 0."""
    return v.render("TM_INLINE int tm_all_$V($V m) { return !tm_any_$V(tm_not_$V(m)); }")
