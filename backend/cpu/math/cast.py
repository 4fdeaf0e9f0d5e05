"""Casts between all element types, masks and bools, with the semantics of torch's `Tensor.to`.

Float to integer truncates (out of range: unspecified, as in torch), integer to a narrower integer wraps, anything to
bool is `!= 0`, and to a narrower float rounds to nearest, ties to even. A NaN stays a NaN.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.integer_casts import in_one_instruction
from taskmap.backend.cpu.math.mask import convert_mask
from taskmap.backend.cpu.math.types import Vector

# Rounding of f32 to its upper half: add just under one half of the last kept place, and one more if that place
# is odd. A NaN could carry into infinity, so it is made quiet instead.
_TO_BF16 = """\
  $SU u = tm_bits_$S(x);
  $SU rounded = u + 0x7fff + ((u >> 16) & 1);
  return tm_cast_${SU}_to_$TU(tm_select_$SU(x != x, u | 0x400000, rounded) >> 16);"""

# In one instruction, which takes subnormal numbers for zeros: vectors with such lanes are left to the integers.
_TO_BF16_NATIVE = """\
#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
  u16 subnormal;
  __asm__("vfpclassps $$0x20, %1, %0" : "=Yk"(subnormal) : "v"(x));
  if (__builtin_expect(!subnormal, 1)) {
    $T y;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
    return y;
  }
#endif
"""

_ONLY_NATIVE = """\
TM_INLINE $T tm_vcvtneps2bf16_$S($S x) {
  u16 subnormal;
  __asm__("vfpclassps $$0x20, %1, %0" : "=Yk"(subnormal) : "v"(x));
  if (__builtin_expect(subnormal, 0)) return tm_cast_${S}_to_$T(x);
  $T y;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
  return y;
}"""

# The same with fewer bits: a subnormal number is rounded by adding a power of two whose last place is that of the
# smallest one. e4m3 has no infinity; values that are too large become the largest.
_TO_FLOAT8 = """\
  $SU all = tm_bits_$S(x);
  $SU u = all & 0x7fffffff;
  $SU small = tm_bits_$S(tm_from_bits_$S(u) + $power) - tm_bits_$S(tm_splat_$S($power));
  $SU r = ((u + $half + ((u >> $dropped) & 1)) >> $dropped) - $bias;
  r = tm_select_$SU(u < $smallest, small, r);
  r = tm_select_$SU(u >= $beyond, tm_splat_$SU($largest), r);
  r = tm_select_$SU(u > 0x7f800000, tm_splat_$SU(0x7f), r);
  return tm_cast_${SU}_to_$TU(r | ((all >> 24) & 0x80));"""
_FROM_FLOAT8 = """\
  $W w = tm_cast_${U}_to_$W(x);
  $W m = w & 0x7f;
  $W small = tm_bits_$F(tm_from_bits_$F((m << $dropped) + $smallest) - tm_from_bits_$F(tm_splat_$W($smallest)));
  $W y = tm_select_$W(m < $normal, small, (m << $dropped) + $zero);
  y = tm_select_$W(m >= $special, $nan, y);
  return tm_from_bits_$F(y | ((w & 0x80) << 24));"""
_FLOAT8 = {
    "fa8": {
        "power": "16384.0f",
        "half": "0x7ffff",
        "dropped": "20",
        "bias": "960",
        "smallest": "0x3c800000",
        "beyond": "0x43e00000",
        "largest": "0x7e",
        "normal": "8",
        "zero": "0x3c000000",
        "special": "0x7f",
        "nan": "tm_splat_$W(0x7fc00000)",
    },
    "fb8": {
        "power": "128.0f",
        "half": "0xfffff",
        "dropped": "21",
        "bias": "448",
        "smallest": "0x38800000",
        "beyond": "0x47700000",
        "largest": "0x7c",
        "normal": "4",
        "zero": "0x38000000",
        "special": "0x7c",
        "nan": "(0x7f800000 | ((m & 3) << 21))",
    },
}

_HALF_BUILTIN = {
    8: ("__F16C__", "__builtin_ia32_vcvtph2ps256({})", "__builtin_ia32_vcvtps2ph256({}, 4)"),
    16: (
        "__AVX512F__",
        "__builtin_ia32_vcvtph2ps512_mask({}, (f32x16){{0}}, (u16)-1, 4)",
        "__builtin_ia32_vcvtps2ph512_mask({}, 4, (i16x16){{0}}, (u16)-1)",
    ),
}


def cast(source: Vector, target: Vector, vector_bytes: int) -> str:
    """`tm_cast_S_to_T(x)`, with as many lanes on both sides."""
    if _is_truth(source) and _is_truth(target):
        return _define("cast", source, target, f"return {_call(source, target)}(x);")
    halves = _by_halves(source, target, vector_bytes)
    one = None if halves else in_one_instruction(source, target, vector_bytes)
    body = halves or _body(source, target)
    if one is not None:
        body = f"#ifndef __clang__\n  {one}\n#else\n  {body}\n#endif"
    return _define("cast", source, target, body)


def mask(source: Vector, target: Vector, vector_bytes: int) -> str | None:
    """`tm_mask_S_to_T(x)`: the cast if both sides are masks or b8, else None."""
    if not (_is_truth(source) and _is_truth(target)):
        return None
    body = _by_halves(source, target, vector_bytes) or convert_mask(source, target)
    return _define("mask", source, target, body)


def _define(prefix: str, s: Vector, t: Vector, body: str) -> str:
    return f"TM_INLINE {t.name} tm_{prefix}_{s.name}_to_{t.name}({s.name} x) {{\n  {body.strip()}\n}}"


def _by_halves(s: Vector, t: Vector, vector_bytes: int) -> str | None:
    if s.lanes == 1 or max(s.bytes, t.bytes) <= vector_bytes or s.dtype == t.dtype:
        return None
    halves = (f"{_call(s.half, t.half)}(tm_{part}_{s.name}(x))" for part in ("lo", "hi"))
    return f"return tm_join_{t.name}({', '.join(halves)});"


def _is_truth(v: Vector) -> bool:
    return v.is_mask or v.dtype == "b8"


def _body(s: Vector, t: Vector) -> str:
    if s.dtype == t.dtype:
        return "return x;"
    if _is_truth(t):
        return _via(s, s.mask, t) if s.bits != t.bits or t.dtype == "b8" else _nonzero(s)
    if _is_truth(s):
        return _from_truth(s, t)
    if s.dtype in _FLOAT8:
        return _from_float8(s)
    if t.dtype in _FLOAT8:
        return _to_float8(s, t)
    if s.dtype == "bf16":
        return _via(s, s.of("f32"), t) if t.dtype != "f32" else _from_bf16(s)
    if t.dtype == "bf16":
        return _via(s, s.of("f32"), t) if s.dtype != "f32" else _to_bf16(s)
    if "f16" in (s.dtype, t.dtype):
        return _via(s, s.of("f32"), t) if "f32" not in (s.dtype, t.dtype) else _half(s, t)
    if s.lanes == 1:
        # A float outside the range of a narrow integer wraps as its vector does, by way of i32.
        narrow = s.is_float and not t.is_float and t.bits < 32
        return f"return ({t.name}){'(i32)' if narrow else ''}x;"
    return _convert(s, t)


def _via(s: Vector, middle: Vector, t: Vector) -> str:
    return f"return {_call(middle, t)}({_call(s, middle)}(x));"


def _call(s: Vector, t: Vector) -> str:
    return f"tm_{'mask' if _is_truth(s) and _is_truth(t) else 'cast'}_{s.name}_to_{t.name}"


def _nonzero(s: Vector) -> str:
    if s.dtype == "bf16":
        return "return (x & 0x7fff) != 0;"
    if s.dtype == "f16":
        return s.render("return (tm_bits_$V(x) & 0x7fff) != 0;")
    return "return x != 0;"


def _from_truth(s: Vector, t: Vector) -> str:
    if s.lanes == 1 and t.dtype == "bf16":
        return "return x ? 0x3f80 : 0;"
    if s.lanes == 1:
        return f"return ({t.name})(x != 0);"
    if s.dtype != t.mask.dtype:
        return f"return tm_cast_{t.mask.name}_to_{t.name}(tm_mask_{s.name}_to_{t.mask.name}(x));"
    one = {"f64": "0x3ff0000000000000", "f32": "0x3f800000", "f16": "0x3c00", "bf16": "0x3f80"}.get(t.dtype, "1")
    return f"return ({t.name})(x & {one});"


def _from_bf16(s: Vector) -> str:
    return s.render("return tm_from_bits_$F(tm_cast_${U}_to_$W(x) << 16);", W=s.of("u32").name)


def _to_bf16(s: Vector) -> str:
    unsigned, narrow = s.of("u32").name, s.of("u16").name
    native = s.render(_TO_BF16_NATIVE, T=s.of("bf16").name) if s.lanes in (8, 16) else ""
    return native + s.render(_TO_BF16, S=s.name, SU=unsigned, TU=narrow)


def round_to_bf16(v: Vector, vector_bytes: int) -> str | None:
    """`tm_vcvtneps2bf16_V(x)`: f32 rounded to bf16 by one instruction, for 8 or 16 lanes."""
    if v.dtype != "f32" or v.lanes not in (8, 16):
        return None
    return v.render(_ONLY_NATIVE, S=v.name, T=v.of("bf16").name)


def _to_float8(s: Vector, t: Vector) -> str:
    unsigned, narrow = s.of("u32").name, s.of("u8").name
    return s.render(_TO_FLOAT8, S=s.name, SU=unsigned, TU=narrow, **_FLOAT8[t.dtype])


def _from_float8(s: Vector) -> str:
    wide = s.of("u32").name
    how = _FLOAT8[s.dtype]
    return s.render(_FROM_FLOAT8, W=wide, **{**how, "nan": how["nan"].replace("$W", wide)})


def _half(s: Vector, t: Vector) -> str:
    if s.lanes == 1:
        return f"return ({t.name})x;"
    portable = f"return __builtin_convertvector(x, {t.name});"
    if s.lanes not in _HALF_BUILTIN:
        return portable
    macro, widen, narrow = _HALF_BUILTIN[s.lanes]
    shorts = s.of("i16").name
    call = widen.format(f"({shorts})x") if t.dtype == "f32" else f"({t.name}){narrow.format('x')}"
    # gcc 12 converts vectors of _Float16 lane by lane; clang has no such built-ins and needs none.
    return f"#if defined({macro}) && !defined(__clang__)\n  return {call};\n#else\n  {portable}\n#endif"


def _convert(s: Vector, t: Vector) -> str:
    """Between f64, f32 and the integers, by steps that double or halve the width: gcc does others lane by lane."""
    direct = f"return __builtin_convertvector(x, {t.name});"
    if s.is_float and t.is_float:
        return direct
    if s.is_float:
        return _via(s, s.of("i32"), t) if t.bits < 32 else direct
    if t.is_float:
        return _via(s, s.of("i32"), t) if s.bits < 32 else direct
    if s.bits in (t.bits, t.bits * 2, t.bits // 2):
        return direct
    sign = s.dtype[0] if s.bits > t.bits else "i" if s.dtype[0] == "i" else "u"
    return _via(s, s.of(f"{sign}{s.bits * 2 if s.bits < t.bits else s.bits // 2}"), t)
