"""Two steps of quantisation that CPUs have as one instruction each, with the results of the casts that they replace.

tm_nearest_f32xL_to_i32xL(x)   the nearest integer, ties to even; i32's lowest number beyond its range, and for NaN
tm_clamped_i32xL_to_i8xL(x)    the nearest number of the range of i8; the same for u8
"""

from __future__ import annotations

from string import Template

from taskmap.backend.cpu.math.types import Vector

_INSTRUCTION = """\
TM_INLINE $T tm_${name}_${S}_to_$T($S x) {
  $T y;$before
  __asm__("$instruction %1, %0" : "=$register"(y) : "$register"(x));
  return y;
}"""
_HALVES = """\
TM_INLINE $T tm_${name}_${S}_to_$T($S x) {
  return tm_join_$T(tm_${name}_${SH}_to_${TH}(tm_lo_$S(x)), tm_${name}_${SH}_to_${TH}(tm_hi_$S(x)));
}"""
_NEAREST = "TM_INLINE $T tm_${name}_${S}_to_$T($S x) { return tm_cast_${S}_to_$T(tm_round_$S(x)); }"
_CLAMPED = """\
TM_INLINE $T tm_${name}_${S}_to_$T($S x) {
  return tm_cast_${S}_to_$T(tm_min_$S(tm_max_$S(x, tm_splat_$S($low)), tm_splat_$S($high)));
}"""
_LIMITS = {"i8": ("-128", "127"), "u8": ("0", "255")}


def nearest(source: Vector, target: Vector, vector_bytes: int) -> str | None:
    """The function for f32 and i32; None for other types. Lanes that fill no register are computed in two steps."""
    if (source.dtype, target.dtype) != ("f32", "i32"):
        return None
    alone = vector_bytes >= 32 and source.bytes in (16, 32, vector_bytes)
    return _text("nearest", "vcvtps2dq" if alone else None, _NEAREST, source, target, vector_bytes)


def clamped(source: Vector, target: Vector, vector_bytes: int) -> str | None:
    """The function for i32 and a byte; None for other types. One instruction with AVX-512, two for u8."""
    if source.dtype != "i32" or target.dtype not in _LIMITS:
        return None
    alone = vector_bytes == 64 and source.lanes == 16
    instruction = "vpmovsdb" if target.dtype == "i8" else "vpmovusdb"
    return _text("clamped", instruction if alone else None, _CLAMPED, source, target, vector_bytes)


def _text(name: str, instruction: str | None, plain: str, s: Vector, t: Vector, vector_bytes: int) -> str:
    split = s.lanes > 1 and s.bytes > vector_bytes
    text = _HALVES if split else plain if instruction is None else _INSTRUCTION
    halves = {"SH": s.half.name, "TH": t.half.name} if split else {}
    words = {"register": "v" if vector_bytes == 64 else "x", "instruction": instruction or "", **halves}
    words["low"], words["high"] = _LIMITS.get(t.dtype, ("", ""))
    words["before"] = f"\n  x = tm_max_{s.name}(x, tm_splat_{s.name}(0));" if t.dtype == "u8" else ""
    return Template(text).substitute(name=name, S=s.name, T=t.name, **words)
