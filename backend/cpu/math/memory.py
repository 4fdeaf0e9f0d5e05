"""Moving lanes: between memory and registers, between the halves of a vector, and from one value into all lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taskmap.backend.cpu.math.types import Vector

_LOAD = "TM_INLINE $V tm_load_$V(const $T *p) { return *(const ${V}_u *)p; }"
_LOAD_SPLIT = "TM_INLINE $V tm_load_$V(const $T *p) { return tm_join_$V(tm_load_$H(p), tm_load_$H(p + $L / 2)); }"
_STORE = "TM_INLINE void tm_store_$V($T *p, $V x) { *(${V}_u *)p = x; }"
_STORE_SPLIT = """\
TM_INLINE void tm_store_$V($T *p, $V x) { tm_store_$H(p, tm_lo_$V(x)); tm_store_$H(p + $L / 2, tm_hi_$V(x)); }"""

# Parts of more than a register are a union: gcc 12 stores a shuffle that is wider than one lane by lane. A register is
# joined by a shuffle: halves of a union would be stored, and loaded together, which waits for both stores to end.
_LO = "TM_INLINE $H tm_lo_$V($V x) { union { $V whole; $H half[2]; } u; u.whole = x; return u.half[0]; }"
_HI = "TM_INLINE $H tm_hi_$V($V x) { union { $V whole; $H half[2]; } u; u.whole = x; return u.half[1]; }"
_JOIN = "TM_INLINE $V tm_join_$V($H lo, $H hi) { union { $H half[2]; $V whole; } u = {{lo, hi}}; return u.whole; }"
_JOIN_REGISTER = """\
TM_INLINE $V tm_join_$V($H lo, $H hi) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(lo, hi, $order);
#else
  union { $H half[2]; $V whole; } u = {{lo, hi}};
  return u.whole;
#endif
}"""

# One instruction for each shuffle: gcc 12 zips whole registers by `vpunpck` and permutes halves, nothing wider.
_STORE_PAIRS = """\
TM_INLINE void tm_store_pairs_$V($T *p, $V a, $V b) {
#if defined(__clang__) || __GNUC__ >= 12
$zipped
#else
  for (i64 l = 0; l < $L; l++) p[2 * l] = a[l], p[2 * l + 1] = b[l];
#endif
}"""
_STORE_PAIRS_SPLIT = """\
TM_INLINE void tm_store_pairs_$V($T *p, $V a, $V b) {
  tm_store_pairs_$H(p, tm_lo_$V(a), tm_lo_$V(b));
  tm_store_pairs_$H(p + $L, tm_hi_$V(a), tm_hi_$V(b));
}"""
_STORE_FOURS = """\
TM_INLINE void tm_store_fours_$V($T *p, $V a, $V b, $V c, $V d) {
#if defined(__clang__) || __GNUC__ >= 12
$zipped
#else
  for (i64 l = 0; l < $L; l++) p[4 * l] = a[l], p[4 * l + 1] = b[l], p[4 * l + 2] = c[l], p[4 * l + 3] = d[l];
#endif
}"""

# Each arm is the form that gcc 12 compiles to the fewest instructions: with mask registers it would turn the second
# one into masked arithmetic and a sum, without them it makes the first one three operations instead of a blend.
_SELECT = """\
TM_INLINE $V tm_select_$V($M m, $V a, $V b) {
#ifdef __AVX512F__
  return ($V)(($U)b ^ (($U)m & (($U)a ^ ($U)b)));
#else
  return ($V)((($U)m & ($U)a) + (~($U)m & ($U)b));
#endif
}"""
_SELECT_SCALAR = "TM_INLINE $V tm_select_$V(int m, $V a, $V b) { return m ? a : b; }"

_BITS = "TM_INLINE $U tm_bits_$V($V x) { return ($U)x; }"
_BITS_SCALAR = "TM_INLINE $U tm_bits_$V($V x) { union { $V x; $U bits; } u = {x}; return u.bits; }"
_FROM_BITS = "TM_INLINE $V tm_from_bits_$V($U x) { return ($V)x; }"
_FROM_BITS_SCALAR = "TM_INLINE $V tm_from_bits_$V($U x) { union { $U bits; $V x; } u = {x}; return u.x; }"

_LOAD_MASKED = """\
TM_INLINE $V tm_load_masked_$V(const $T *p, i64 n) {
$native  $V x = {0};
#pragma GCC unroll 1
  for (i64 l = 0; l < $L && l < n; l++) x[l] = p[l];
  return x;
$end}"""
_STORE_MASKED = """\
TM_INLINE void tm_store_masked_$V($T *p, $V x, i64 n) {
$native  $T lanes[$L];
  tm_store_$V(lanes, x);
#pragma GCC unroll 1
  for (i64 l = 0; l < $L && l < n; l++) p[l] = lanes[l];
$end}"""
# gcc 12 builds a vector of _Float16 from its lanes one by one, so they are loaded as integers. The empty asm hides
# their source: halves of a register of them, converted to f32, are an internal error of gcc 12, and a vector of two
# equal halves is an instruction that no assembler knows.
_LOAD_STRIDED_F16 = """\
TM_INLINE $V tm_load_strided_$V(const $T *p, i64 step) {
  $U x = tm_load_strided_$U((const u16 *)p, step);
$hidden  return ($V)x;
}"""
_GATHER_F16 = """\
TM_INLINE $V tm_gather_f16_$index(const f16 *p, $index i) {
  $U x = {$lanes};
$hidden  return ($V)x;
}"""
_HIDDEN = """\
#if defined(__x86_64__) && !defined(__clang__)
  __asm__("" : "+v"(x));
#endif
"""
_LOAD_STRIDED_SPLIT = """\
TM_INLINE $V tm_load_strided_$V(const $T *p, i64 step) {
  return tm_join_$V(tm_load_strided_$H(p, step), tm_load_strided_$H(p + $L / 2 * step, step));
}"""
# The element names of the built-in masked moves of 8 to 64 bits, and the C types that they require.
_MASKED_ELEMENT = {8: ("dquqi", "char"), 16: ("dquhi", "short"), 32: ("dqusi", "int"), 64: ("dqudi", "long long")}


def load(v: Vector, vector_bytes: int) -> str:
    """`tm_load_V(p)`: the lanes at p, which need not be aligned."""
    return v.render(_LOAD_SPLIT if v.lanes > 1 and v.bytes > vector_bytes else _LOAD)


def store_pairs(v: Vector, vector_bytes: int) -> str | None:
    """`tm_store_pairs_V(p, a, b)`: a[0], b[0], a[1], b[1], ... at p, for elements of 16 bits."""
    if v.bits != 16 or not 1 < v.lanes <= 16:
        return None
    if v.bytes > vector_bytes:
        return v.render(_STORE_PAIRS_SPLIT)
    if v.bytes < 16:
        return v.render(_STORE_PAIRS, zipped=f"  tm_store_{v.wide(2 * v.lanes).name}(p, {_zip('a', 'b', v.lanes)});")
    store = f"  tm_store_{v.name}(p{{}}, {{}});".format
    if v.bytes == 16:
        halves = [store(f" + {at}", _zip("a", "b", 8, range(at // 2, at // 2 + 4))) for at in (0, 8)]
        return v.render(_STORE_PAIRS, zipped="\n".join(halves))
    zipped = [_zip("a", "b", 16, [*range(at, at + 4), *range(at + 8, at + 12)]) for at in (0, 4)]
    lines = [f"  const {v.name} lo = {zipped[0]}, hi = {zipped[1]};"]
    for at in (0, 8):
        lanes = ", ".join(map(str, [*range(at, at + 8), *range(at + 16, at + 24)]))
        lines.append(store(f" + {2 * at}", f"__builtin_shufflevector(lo, hi, {lanes})"))
    return v.render(_STORE_PAIRS, zipped="\n".join(lines))


def _zip(a: str, b: str, lanes: int, places: Iterable[int] | None = None) -> str:
    """The lanes ``places`` of two vectors, all of them if None, those of one vector before those of the other."""
    order = (lane for i in (range(lanes) if places is None else places) for lane in (i, lanes + i))
    return f"__builtin_shufflevector({a}, {b}, {', '.join(map(str, order))})"


def store_fours(v: Vector, vector_bytes: int) -> str | None:
    """`tm_store_fours_V(p, a, b, c, d)`: a[0], b[0], c[0], d[0], a[1], ... at p: of elements of 8 bits, pairs of pairs;
    of 16 bits, lanes of 64 bits."""
    if v.bits == 16 and 1 < v.lanes <= 16:
        part = min(v.lanes, max(2, vector_bytes // 8))
        stores = [_wide_four(v, first, part) for first in range(0, v.lanes, part)]
        return v.render(_STORE_FOURS, zipped="\n".join(stores))
    if v.bits != 8 or not 1 < v.lanes <= 16:
        return None
    part = min(v.lanes, 8)
    pairs = f"u16x{part}"
    lines = []
    for first in range(0, v.lanes, part):
        left, right = (f"({pairs}){_zip(a, b, v.lanes, range(first, first + part))}" for a, b in ("ab", "cd"))
        lines.append(f"  tm_store_pairs_{pairs}((u16 *)p + {2 * first}, {left}, {right});")
    return v.render(_STORE_FOURS, zipped="\n".join(lines))


def _wide_four(v: Vector, first: int, lanes: int) -> str:
    """The store of ``lanes`` of the lanes of four vectors from ``first`` on, each four as one integer of 64 bits."""
    places = ", ".join(map(str, range(first, first + lanes)))
    parts = []
    for place, x in enumerate("abcd"):
        whole = f"({v.of('u16').name}){x}"
        narrow = whole if lanes == v.lanes else f"__builtin_shufflevector({whole}, {whole}, {places})"
        parts.append(f"__builtin_convertvector({narrow}, u64x{lanes}) << {16 * place}")
    return f"  tm_store_u64x{lanes}((u64 *)(p + {4 * first}), {' | '.join(parts)});"


def store(v: Vector, vector_bytes: int) -> str:
    """`tm_store_V(p, x)`."""
    return v.render(_STORE_SPLIT if v.lanes > 1 and v.bytes > vector_bytes else _STORE)


def lo(v: Vector, vector_bytes: int) -> str:
    """`tm_lo_V(x)`: the first half of the lanes."""
    return v.render(_LO) if v.lanes > 2 else _one_of_two(v, "lo", 0)


def hi(v: Vector, vector_bytes: int) -> str:
    """`tm_hi_V(x)`: the second half of the lanes."""
    return v.render(_HI) if v.lanes > 2 else _one_of_two(v, "hi", 1)


def _one_of_two(v: Vector, name: str, lane: int) -> str:
    truth = " != 0" if v.is_mask else ""  # with one lane, a mask is 0 or 1
    return v.render(f"TM_INLINE $H tm_{name}_$V($V x) {{ return x[{lane}]{truth}; }}")


def join(v: Vector, vector_bytes: int) -> str:
    """`tm_join_V(lo, hi)`."""
    if v.lanes > 2 and 16 <= v.bytes <= vector_bytes and v.dtype != "f16":
        return v.render(_JOIN_REGISTER, order=", ".join(map(str, range(v.lanes))))
    if v.lanes > 2:
        return v.render(_JOIN)
    sign = "-" if v.is_mask else ""
    return v.render(f"TM_INLINE $V tm_join_$V($H lo, $H hi) {{ return ($V){{{sign}lo, {sign}hi}}; }}")


def select(v: Vector, vector_bytes: int) -> str:
    """`tm_select_V(m, a, b)`: a in lanes in which the mask is set, else b."""
    if v.lanes == 1:
        return v.render(_SELECT_SCALAR)
    if v.bytes <= vector_bytes:
        return v.render(_SELECT)
    arms = (f"tm_select_$H(tm_{part}_$M(m), tm_{part}_$V(a), tm_{part}_$V(b))" for part in ("lo", "hi"))
    return v.render(f"TM_INLINE $V tm_select_$V($M m, $V a, $V b) {{ return tm_join_$V({', '.join(arms)}); }}")


def bits(v: Vector, vector_bytes: int) -> str:
    """`tm_bits_V(x)`: the representation, as unsigned integers of the same width."""
    return v.render(_BITS if v.lanes > 1 else _BITS_SCALAR)


def from_bits(v: Vector, vector_bytes: int) -> str:
    """`tm_from_bits_V(u)`: the inverse of `tm_bits_V`."""
    return v.render(_FROM_BITS if v.lanes > 1 else _FROM_BITS_SCALAR)


def splat(v: Vector, vector_bytes: int) -> str:
    """`tm_splat_V(x)`: x in every lane."""
    if v.lanes == 1:
        return v.render("TM_INLINE $V tm_splat_$V($T x) { return x; }")
    if v.dtype == "f16":  # gcc 12 builds a vector of _Float16 from its lanes one by one
        return v.render("TM_INLINE $V tm_splat_$V($T x) { return ($V)tm_splat_$U(tm_bits_f16x1(x)); }")
    if v.bytes > vector_bytes:  # gcc 12 stores the lanes of such a vector one by one
        return v.render("TM_INLINE $V tm_splat_$V($T x) { $H half = tm_splat_$H(x); return tm_join_$V(half, half); }")
    return v.render("TM_INLINE $V tm_splat_$V($T x) { return ($V){$lanes}; }", lanes=", ".join("x" * v.lanes))


def iota(v: Vector, vector_bytes: int) -> str:
    """`tm_iota_V()`: 0, 1, 2, ..."""
    if v.lanes == 1:
        return v.render("TM_INLINE $V tm_iota_$V(void) { return 0; }")
    if v.dtype == "bf16":
        return v.render("TM_INLINE $V tm_iota_$V(void) { return tm_cast_${F}_to_$V(tm_iota_$F()); }")
    return v.render("TM_INLINE $V tm_iota_$V(void) { return ($V){$lanes}; }", lanes=", ".join(map(str, range(v.lanes))))


def load_strided(v: Vector, vector_bytes: int) -> str:
    """`tm_load_strided_V(p, step)`: p[l * step] in lane l."""
    if v.lanes == 1:
        return v.render("TM_INLINE $V tm_load_strided_$V(const $T *p, i64 step) { return *p; }")
    if v.bytes > vector_bytes:
        return v.render(_LOAD_STRIDED_SPLIT)
    if v.dtype == "f16":
        return v.render(_LOAD_STRIDED_F16, hidden=_HIDDEN)
    lanes = ", ".join(["p[0]", *(f"p[{lane} * step]" for lane in range(1, v.lanes))])
    return v.render(f"TM_INLINE $V tm_load_strided_$V(const $T *p, i64 step) {{ return ($V){{{lanes}}}; }}")


def store_strided(v: Vector, vector_bytes: int) -> str:
    """`tm_store_strided_V(p, step, x)`: lane l to p[l * step], in the order of the lanes."""
    stores = "p[0] = x;" if v.lanes == 1 else " ".join(f"p[{lane} * step] = x[{lane}];" for lane in range(v.lanes))
    return v.render(f"TM_INLINE void tm_store_strided_$V($T *p, i64 step, $V x) {{ {stores} }}")


def load_masked(v: Vector, vector_bytes: int) -> str:
    """`tm_load_masked_V(p, n)`: the first n lanes from p, 0 in the others; their memory is not touched."""
    if v.lanes == 1:
        return v.render("TM_INLINE $V tm_load_masked_$V(const $T *p, i64 n) { return n > 0 ? *p : ($T)0; }")
    if v.bytes > vector_bytes:
        return v.render(
            "TM_INLINE $V tm_load_masked_$V(const $T *p, i64 n) {"
            " return tm_join_$V(tm_load_masked_$H(p, n), tm_load_masked_$H(p + $L / 2, n - $L / 2)); }"
        )
    kind, c_type = _MASKED_ELEMENT[v.bits]
    whole = f"({c_type} __attribute__((vector_size({v.bytes}))))"
    arguments = f"(const void *)p, {whole}{{0}}, tm_first_lanes_m8x{v.lanes}(n)"
    return _masked(v, _LOAD_MASKED, f"  return ($V)__builtin_ia32_load{kind}{v.bytes * 8}_mask({arguments});\n")


def store_masked(v: Vector, vector_bytes: int) -> str:
    """`tm_store_masked_V(p, x, n)`: the first n lanes to p; memory beyond them is not touched."""
    if v.lanes == 1:
        return v.render("TM_INLINE void tm_store_masked_$V($T *p, $V x, i64 n) { if (n > 0) *p = x; }")
    if v.bytes > vector_bytes:
        return v.render(
            "TM_INLINE void tm_store_masked_$V($T *p, $V x, i64 n) {"
            " tm_store_masked_$H(p, tm_lo_$V(x), n); tm_store_masked_$H(p + $L / 2, tm_hi_$V(x), n - $L / 2); }"
        )
    kind, c_type = _MASKED_ELEMENT[v.bits]
    whole = f"({c_type} __attribute__((vector_size({v.bytes}))))"
    arguments = f"(void *)p, {whole}x, tm_first_lanes_m8x{v.lanes}(n)"
    return _masked(v, _STORE_MASKED, f"  __builtin_ia32_store{kind}{v.bytes * 8}_mask({arguments});\n")


def _masked(v: Vector, template: str, statement: str) -> str:
    if v.bytes not in (16, 32, 64):
        return v.render(template, native="", end="")
    needs = ["__AVX512F__" if v.bytes == 64 else "__AVX512VL__"] + ["__AVX512BW__"] * (v.bits < 32)
    condition = "#if " + " && ".join(f"defined({macro})" for macro in needs) + "\n"
    return v.render(template, native=condition + v.render(statement) + "#else\n", end="#endif\n")


def first_lanes(v: Vector, vector_bytes: int) -> str:
    """`tm_first_lanes_m8xL(n)`: a mask register with the first n of L bits set."""
    every = f"0x{(1 << v.lanes) - 1:x}ull"
    return v.render(
        f"TM_INLINE u64 tm_first_lanes_$V(i64 n) {{ return n >= {v.lanes} ? {every} : n > 0 ? (1ull << n) - 1 : 0; }}"
    )


def gather(v: Vector, index: Vector, vector_bytes: int) -> str:
    """`tm_gather_D_IxL(p, index)`: p[index[l]] in lane l.

    Lane by lane: the hardware's gather is no faster on the CPUs at hand, and slower on several.
    """
    if v.dtype == "f16" and v.lanes > 1:
        lanes = ", ".join(f"((const u16 *)p)[i[{lane}]]" for lane in range(v.lanes))
        return v.render(_GATHER_F16, index=index.name, lanes=lanes, hidden=_HIDDEN if v.bytes <= vector_bytes else "")
    lanes = "p[i]" if v.lanes == 1 else ", ".join(f"p[i[{lane}]]" for lane in range(v.lanes))
    value = lanes if v.lanes == 1 else f"($V){{{lanes}}}"
    return v.render(f"TM_INLINE $V tm_gather_${{D}}_{index.name}(const $T *p, {index.name} i) {{ return {value}; }}")


def scatter(v: Vector, index: Vector) -> str:
    """`tm_scatter_D_IxL(p, index, x)`: p[index[l]] = lane l of x, in the order of the lanes."""
    if v.lanes == 1:
        stores = "p[i] = x;"
    else:
        stores = " ".join(f"p[i[{lane}]] = x[{lane}];" for lane in range(v.lanes))
    return v.render(f"TM_INLINE void tm_scatter_${{D}}_{index.name}($T *p, {index.name} i, $V x) {{ {stores} }}")


# One instruction for each shuffle: neighbours within blocks of four lanes, pairs within blocks, then blocks.
_TRANSPOSE = """\
TM_INLINE void tm_transpose_$V($T *to, i64 step, const void *from, i64 bytes) {
#if defined(__clang__) || __GNUC__ >= 12
$exchanged
#else
  for (i64 j = 0; j < $L; j++)
    for (i64 i = 0; i < $L; i++) to[j * step + i] = tm_load_$V((const $T *)((const char *)from + i * bytes))[j];
#endif
}"""


def transpose(v: Vector, vector_bytes: int) -> str | None:
    """`tm_transpose_V(to, step, from, bytes)`: lane j of the vector at from + i * bytes becomes lane i of the one at
    to + j * step, for vectors of sixteen elements of 32 bits."""
    if v.bits != 32 or v.lanes != 16 or vector_bytes != 64:
        return None
    lines = [f"$V r0_{i} = tm_load_$V((const $T *)((const char *)from + {i} * bytes));" for i in range(16)]
    for number, exchanges in enumerate(_EXCHANGES):
        apart = 1 << number
        for low in (i for i in range(16) if not i & apart):
            for at, lanes in zip((low, low + apart), exchanges, strict=True):
                pair = f"r{number}_{low}, r{number}_{low + apart}"
                lines.append(f"$V r{number + 1}_{at} = __builtin_shufflevector({pair}, {', '.join(map(str, lanes))});")
    # The first two rounds leave columns 1 and 2 of each block in each other's place.
    order = [i & 12 | (i & 1) << 1 | (i & 2) >> 1 for i in range(16)]
    lines += [f"tm_store_$V(to + {order[i]} * step, r4_{i});" for i in range(16)]
    exchanged = v.render("\n".join("  " + line for line in lines))
    return v.render(_TRANSPOSE, exchanged=exchanged)


def _each_block(lanes: Sequence[int]) -> list[int]:
    """Lanes of the first blocks of four of two vectors, and those of the later blocks likewise."""
    return [lane + block for block in (0, 4, 8, 12) for lane in lanes]


def _whole_blocks(first: int) -> list[int]:
    """Every other block of four lanes of two vectors, from block ``first`` on."""
    return [4 * block + lane for block in (first, first + 2, first + 4, first + 6) for lane in range(4)]


_EXCHANGES = (
    (_each_block((0, 16, 1, 17)), _each_block((2, 18, 3, 19))),
    (_each_block((0, 1, 16, 17)), _each_block((2, 3, 18, 19))),
    (_whole_blocks(0), _whole_blocks(1)),
    (_whole_blocks(0), _whole_blocks(1)),
)
"""The lanes of two vectors that each of their successors takes, by rounds, between vectors 1, 2, 4 and 8 apart."""
