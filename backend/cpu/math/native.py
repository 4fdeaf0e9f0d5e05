"""Floating-point functions that CPUs compute in one instruction: multiply-add, rounding to integers, square root,
minimum and maximum, scaling.

GNU C has no operators for these, and no headers are included, so each is a compiler built-in if the target has it, and
plain vector arithmetic otherwise.
"""

from __future__ import annotations

from taskmap.backend.cpu.math.types import Vector

_ROUND_MODE = {"round": 8, "floor": 9, "ceil": 10, "trunc": 11}  # 8: raise no exception

_SCALAR = {"round": "rint", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "sqrt": "sqrt"}

# Adding 2^23 (2^52) to a smaller |x| rounds it to an integer, ties to even. The empty asm keeps -ffast-math from
# cancelling the sum.
_ROUND = """\
  $V a = tm_abs_$V(x);
  $V t = a + $magic;
#ifdef __FAST_MATH__
  __asm__("" : "+m"(t));
#endif
$fix"""
_NEAREST = "tm_copysign_$V(tm_select_$V(a < $magic, t - $magic, a), x)"
_FIX = {
    "round": f"  return {_NEAREST};",
    "floor": f"  $V r = {_NEAREST};\n  return tm_copysign_$V(tm_select_$V(r > x, r - 1, r), x);",
    "ceil": f"  $V r = {_NEAREST};\n  return tm_copysign_$V(tm_select_$V(r < x, r + 1, r), x);",
    "trunc": f"  $V r = {_NEAREST};\n  return tm_copysign_$V(tm_select_$V(tm_abs_$V(r) > a, tm_abs_$V(r) - 1, r), x);",
}
_SQRT = """\
  $V r = x;
#pragma GCC unroll 1
  for (int l = 0; l < $L; l++) r[l] = __builtin_sqrt$f(x[l]);
  return r;"""

# x86: min(a, b) is a < b ? a : b, so a NaN in b propagates. With mask registers the maximum that propagates a NaN from
# either side takes two instructions: if a is a NaN, a itself stays.
_ATMOST = "  return tm_select_$V(bound < x, bound, x);"
_ATLEAST = "  return tm_select_$V(bound > x, bound, x);"
_MAXIMUM = "  return tm_select_$V(x != x, x, tm_atleast_$V(y, x));"
_MINIMUM = "  return tm_select_$V(x != x, x, tm_atmost_$V(y, x));"

_POW2 = {  # n + magic + bias leaves n, biased, in the last bits, and the shift makes an exponent of it
    "f32": "  return tm_from_bits_$V(tm_bits_$V(n + 12583039.0f) << 23);",
    "f64": "  return tm_from_bits_$V(tm_bits_$V(n + 6755399441056767.0) << 52);",
}
_SCALE = {  # f32: the first factor is 0 from the bound on, so that no product is rounded to 0
    "f32": """\
  n = tm_atleast_$V(n, tm_splat_$V(-254.0f));
  $V h = tm_round_$V(n * 0.5f);
  return x * tm_pow2_$V(h) * tm_pow2_$V(n - h);""",
    "f64": """\
  $V h = tm_round_$V(n * 0.5);
  return x * tm_pow2_$V(h) * tm_pow2_$V(n - h);""",
}
# One instruction for vectors of any width; those of less than a register are a part of one.
_ESTIMATE = """\
#ifdef __AVX512VL__
$estimate
#else
  return 1.0f / x;
#endif"""
# If the CPU cannot round x * y + z once, it is rounded twice. This holds for a whole target, never for some lanes only.
_FMA = """\
#if defined(__FMA__) || defined(__FP_FAST_FMA$F)
$fused
#else
  return x * y + z;
#endif"""
_FMA_LANES = """\
  $V r = x;
#pragma GCC unroll 64
  for (int l = 0; l < $L; l++) r[l] = __builtin_fma$f(x[l], y[l], z[l]);
  return r;"""


def native(name: str, v: Vector) -> str | None:
    """Definition of `tm_<name>_V` for f32 and f64, or None if `name` is not one of these functions.

    fma(x, y, z): x y + z; round (ties to even), floor, ceil, trunc, sqrt; max, min: the other operand is a NaN where
    one is; atmost(x, bound), atleast(x, bound): a NaN in x comes through, one in bound does not; pow2(n): 2^n for an
    integral n in [-127, 128], with 0 and inf at the ends; scale(x, n): x 2^n, rounded once, for 1/2 <= x <= 2 and an
    integral n of at most 256 (f64: in [-2044, 2048]); estimate(x), of f32: 1 / x to at least 13 bits, the same in any
    number of lanes, for x and 1 / x in the normal range.
    """
    if name == "fma":
        return _fma(v)
    if name in _SCALAR:
        return _one_operand(name, v)
    if name in ("max", "min", "atmost", "atleast"):
        return _two_operands(name, v)
    if name == "pow2":
        return _define(v, "pow2", "$V n", _POW2[v.dtype])
    if name == "estimate" and v.dtype == "f32":
        return _define(v, name, "$V x", v.render(_ESTIMATE, estimate=_estimate(v)))
    if name == "scale":
        fast = _register(v, {64: "scalef{p}512_mask(x, n, x, -1, 4)"}, {64: "__AVX512F__"})
        return _define(v, "scale", "$V x, $V n", _either(fast, _SCALE[v.dtype]))
    return None


def _estimate(v: Vector) -> str:
    """The instruction that estimates a reciprocal, of a register of 16, 32 or 64 bytes."""
    size = max(v.bytes, 16)
    instruction = f"__builtin_ia32_rcp14ps{8 * size}_mask({{0}}, {{0}}, -1)"
    if v.bytes >= 16:
        return f"  return {instruction.format('x')};"
    lanes = "x" if v.lanes == 1 else "x[0], x[1]"
    whole = f"  f32x4 whole = {{{lanes}}};\n  whole = {instruction.format('whole')};\n"
    return whole + ("  return whole[0];" if v.lanes == 1 else "  return ($V){whole[0], whole[1]};")


def _define(v: Vector, name: str, arguments: str, body: str) -> str:
    suffix = "f" if v.dtype == "f32" else ""
    magic = "0x1p23f" if v.dtype == "f32" else "0x1p52"
    return v.render(f"TM_INLINE $V tm_{name}_$V({arguments}) {{\n{body}\n}}", f=suffix, magic=magic)


def _register(v: Vector, calls: dict[int, str], macros: dict[int, str]) -> tuple[str, str] | None:
    """The preprocessor condition and the built-in for a vector that fills a register, if there is one.

    Not for clang, which lacks some of these names and selects the instructions from plain arithmetic by itself.
    """
    if v.lanes == 1 or v.bytes not in calls:
        return None
    guard = f"defined({macros[v.bytes]}) && !defined(__clang__)"
    return guard, "__builtin_ia32_" + calls[v.bytes].replace("{p}", "ps" if v.dtype == "f32" else "pd")


def _either(fast: tuple[str, str] | None, portable: str) -> str:
    if fast is None:
        return portable
    return f"#if {fast[0]}\n  return {fast[1]};\n#else\n{portable}\n#endif"


def _in_clang(name: str, otherwise: str, arguments: str = "x") -> str:
    builtin = f"__builtin_elementwise_{'roundeven' if name == 'round' else name}"
    rest = f"#el{otherwise[1:]}" if otherwise.startswith("#if ") else f"#else\n{otherwise}\n#endif"
    return f"#if defined(__clang__) && __has_builtin({builtin})\n  return {builtin}({arguments});\n{rest}"


def _one_operand(name: str, v: Vector) -> str:
    if v.lanes == 1:
        return _define(v, name, "$V x", f"  return __builtin_{_SCALAR[name]}$f(x);")
    if name == "sqrt":
        calls = {64: "sqrt{p}512_mask(x, x, -1, 4)", 32: "sqrt{p}256(x)", 16: "sqrt{p}(x)"}
        macros = {64: "__AVX512F__", 32: "__AVX__", 16: "__SSE2__"}
        return _define(v, name, "$V x", _in_clang(name, _either(_register(v, calls, macros), _SQRT)))
    calls = {64: "rndscale{p}_mask(x, $mode, x, -1, 4)", 32: "round{p}256(x, $mode)", 16: "round{p}(x, $mode)"}
    calls = {size: call.replace("$mode", str(_ROUND_MODE[name])) for size, call in calls.items()}
    fast = _register(v, calls, {64: "__AVX512F__", 32: "__AVX__", 16: "__SSE4_1__"})
    return _define(v, name, "$V x", _in_clang(name, _either(fast, _ROUND.replace("$fix", _FIX[name]))))


def _fma(v: Vector) -> str:
    if v.lanes == 1:
        body = "  return __builtin_fma$f(x, y, z);"
    else:
        calls = {64: "vfmadd{p}512_mask(x, y, z, -1, 4)", 32: "vfmadd{p}256(x, y, z)", 16: "vfmadd{p}(x, y, z)"}
        body = _either(_register(v, calls, {64: "__AVX512F__", 32: "__FMA__", 16: "__FMA__"}), _FMA_LANES)
        body = _in_clang("fma", body, "x, y, z")
    text = _FMA.replace("$fused", body).replace("$F", "F" if v.dtype == "f32" else "")
    return _define(v, "fma", "$V x, $V y, $V z", text)


def _two_operands(name: str, v: Vector) -> str:
    macros = {64: "__AVX512F__", 32: "__AVX__", 16: "__SSE2__"}
    if name in ("max", "min"):
        ordered = "__builtin_ia32_cmp{p}512_mask(x, x, 7, -1, 4)"
        fast = _register(v, {64: f"{name}{{p}}512_mask(x, y, x, {ordered}, 4)"}, macros)
        return _define(v, name, "$V x, $V y", _either(fast, _MAXIMUM if name == "max" else _MINIMUM))
    op = "min" if name == "atmost" else "max"
    calls = {64: f"{op}{{p}}512_mask(bound, x, x, -1, 4)", 32: f"{op}{{p}}256(bound, x)", 16: f"{op}{{p}}(bound, x)"}
    portable = _ATMOST if name == "atmost" else _ATLEAST
    if v.bytes > max(calls):  # gcc compares vectors of several registers lane by lane
        halves = (f"tm_{name}_{v.half.name}(tm_{part}_$V(x), tm_{part}_$V(bound))" for part in ("lo", "hi"))
        portable = f"  return tm_join_$V({', '.join(halves)});"
    return _define(v, name, "$V x, $V bound", _either(_register(v, calls, macros), portable))
