"""Dot products of neighbours, one instruction each: vdpbf16ps, vpdpbusd, vpdpwssd.

tm_vdpbf16ps_V(c, a, b)          a: one group of neighbours for all lanes
tm_lanes_vdpbf16ps_V(c, a, b)    a: a group for each lane

Inline assembly, because compilers disagree about the types of these built-ins from one version to the next.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.types import Vector
from taskmap.ir.isa.dots import DOT_PRODUCTS
from taskmap.ir.isa.specs import MatMulSpec

_DOTS = {
    entry.family: (str(entry.spec.c), str(entry.spec.a), str(entry.spec.b))
    for entry in DOT_PRODUCTS
    if isinstance(entry.spec, MatMulSpec)
}
"""The types of c, a and b of each instruction."""
_TEXT = """\
TM_INLINE $V tm_${form}${name}_$V($V c, ${a}x$k a, ${b}x$all b) {
  union { ${a}x$k group; u32 bits; } u = {a};
  u32x$L groups = tm_splat_u32x$L(u.bits);
  __asm__("${prefix}$name %2, %1, %0" : "+$register"(c) : "$register"(groups), "$register"(b));
  return c;
}"""

_IN_LANES = """\
TM_INLINE $V tm_lanes_${name}_$V($V c, ${a}x$all a, ${b}x$all b) {
  __asm__("$name %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}"""
_LANES = "lanes_"


def dot(name: str, v: Vector, vector_bytes: int) -> str | None:
    """`tm_vdpbf16ps_V(c, a, b)` and the like: c plus, for every lane, the dot product of a with the lane's part of b,
    both of 32 bits. `tm_vex_vpdpbusd_V` is encoded without EVEX, for AVX-VNNI; in `tm_lanes_vdpbf16ps_V` a, too, has a
    part for every lane. None for another name or type."""
    plain = name.removeprefix("vex_").removeprefix(_LANES)
    if plain not in _DOTS or v.dtype != _DOTS[plain][0] or v.lanes not in (4, 8, 16):
        return None
    _, a, b = _DOTS[plain]
    k = 32 // Vector(a, 1).bits
    if name.startswith(_LANES):
        return v.render(_IN_LANES, name=plain, a=a, b=b, all=str(k * v.lanes))
    vex = plain != name
    return v.render(
        _TEXT, name=plain, a=a, b=b, k=str(k), all=str(k * v.lanes), form="vex_" if vex else "",
        prefix="%{vex%} " if vex else "", register="x" if vex else "v",
    )  # fmt: skip


def is_dot(name: str) -> bool:
    """True if a function of the prelude is such a dot product."""
    return name.removeprefix("vex_").removeprefix(_LANES) in _DOTS
