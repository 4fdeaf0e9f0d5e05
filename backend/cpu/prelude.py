"""The prelude of generated C: the types and functions that one source uses, and nothing else.

No header is included, so compile time depends on use alone. The names (V is a vector type, `f32x16`, see math/types, of
1, 2, 4, ..., 64 lanes; D, E are dtypes; L is a number of lanes; M is a mask such as `m32x16`):

    tm_load_V(p)  tm_store_V(p, x)                   any alignment
    tm_load_masked_V(p, n)  tm_store_masked_V(p, x, n)   the first n lanes; a load gives 0 in the others
    tm_load_strided_V(p, step)  tm_store_strided_V(p, step, x)   p[l * step] is lane l
    tm_load_twice_V(p)                               p[l / 2] is lane l
    tm_store_pairs_V(p, a, b)                        a and b interleaved, of 16-bit elements
    tm_transpose_V(to, step, from, bytes)            a square of 16 × 16 words: rows of `from` become columns of `to`
    tm_store_fours_V(p, a, b, c, d)                  the same of four vectors, of 8-bit elements, too
    tm_look_up_V(p, bytes)  tm_vpermi2b_V            p[bytes[l]] in lane l, of the 256 elements of 8 bits at p
    tm_vcvtneps2bf16_V(x)                            f32 rounded to bf16
    tm_gather_D_IxL(p, index)  tm_scatter_D_IxL(p, index, x)   I is i32 or i64
    tm_splat_V(x)  tm_iota_V()  tm_lo_V(x)  tm_hi_V(x)  tm_join_V(lo, hi)
    tm_bits_V(x)  tm_from_bits_V(u)                  the representation, in unsigned integers (`u32x16`)
    tm_select_V(m, a, b)                             a where m is set
    tm_lt_V(x, y)  tm_le_V  tm_gt_V  tm_ge_V  tm_eq_V  tm_ne_V   a mask, also of vectors of several registers
    tm_checked_index_V(i, n, error)                  i, or i + n where it is negative; *error: it is no index
    tm_any_M(m)  tm_all_M(m)                         an int, 0 or 1
    tm_not_M(m)
    tm_cast_DxL_to_ExL(x)                            D, E also masks, and b8, the bytes 0 and 1 of a bool
    tm_mask_DxL_to_ExL(x)                            the same, between masks and b8
    tm_nearest_f32xL_to_i32xL(x)  tm_clamped_i32xL_to_i8xL(x)   casts after rounding, and after limits (also u8)
    tm_code_i16xL_to_bf16xL(x)                       the cast of x & 15, see math/codes
    tm_hsum_V(x)  tm_hprod_V  tm_hmax_V  tm_hmin_V   one element
    tm_vdpbf16ps_V(c, a, b)  tm_vpdpbusd_V  tm_vpdpwssd_V  tm_vex_...  tm_lanes_...   dot products, see math/dot
    tm_tile_...  tm_tdp...                           tile registers, see math/amx
    tm_<function>_V(x) or (x, y)                     the functions of vector_math.FUNCTIONS
    tm_parallel_1(loop, data, n)                     loop(data, first, end) for ranges from 0 to n, on any thread

Definitions name what they need, so what a source needs is found by reading it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

from taskmap.backend.cpu.math import mask as math_mask
from taskmap.backend.cpu.math import memory as math_memory
from taskmap.backend.cpu.math import neighbours
from taskmap.backend.cpu.math.amx import tile_text
from taskmap.backend.cpu.math.cast import cast, mask, round_to_bf16
from taskmap.backend.cpu.math.codes import code
from taskmap.backend.cpu.math.dot import dot, is_dot
from taskmap.backend.cpu.math.look_up import look_up, permuted
from taskmap.backend.cpu.math.quantise import clamped, nearest
from taskmap.backend.cpu.math.reduce import COMBINE, reduction
from taskmap.backend.cpu.math.types import PREAMBLE, SCALAR_TYPES, SELDOM, Vector, parse_vector, typedef
from taskmap.backend.cpu.math.vector_math import function, is_function
from taskmap.backend.cpu.team import PARALLEL, PARALLEL_DECLARATION
from taskmap.ir.errors import CodegenError

_SYMBOL = re.compile(r"\b(?:tm_\w+|[a-z]+\d+x\d+(?:_u)?|f16|f[ab]8)\b")
_WORD = re.compile(r"[a-zA-Z_]\w*")
_PAIR = re.compile(r"tm_(cast|mask|nearest|clamped|code)_([a-z]+\d+x\d+)_to_([a-z]+\d+x\d+)")
_INDEXED = re.compile(r"tm_(gather|scatter)_([a-z]+\d+)_((?:i32|i64)x\d+)")
_CALL = re.compile(r"tm_(\w+?)_([a-z]+\d+x\d+)")

_CONVERSIONS: dict[str, Callable[[Vector, Vector, int], str | None]] = {
    "cast": cast,
    "mask": mask,
    "nearest": nearest,
    "clamped": clamped,
    "code": code,
}
_Definition = Callable[[Vector, int], str | None]
_STRUCTURAL: dict[str, _Definition] = {
    "checked_index": math_mask.checked_index,
    **{op: math_mask.comparison(op) for op in math_mask.COMPARISONS},
    "load": math_memory.load,
    "store": math_memory.store,
    "store_pairs": math_memory.store_pairs,
    "store_fours": math_memory.store_fours,
    "transpose": math_memory.transpose,
    "load_strided": math_memory.load_strided,
    "load_twice": neighbours.load_twice,
    "look_up": look_up,
    "vpermi2b": permuted,
    "vcvtneps2bf16": round_to_bf16,
    "store_strided": math_memory.store_strided,
    "load_masked": math_memory.load_masked,
    "store_masked": math_memory.store_masked,
    "first_lanes": math_memory.first_lanes,
    "lo": math_memory.lo,
    "hi": math_memory.hi,
    "join": math_memory.join,
    "select": math_memory.select,
    "bits": math_memory.bits,
    "from_bits": math_memory.from_bits,
    "splat": math_memory.splat,
    "iota": math_memory.iota,
    "not": math_mask.invert,
    "any": math_mask.any_lane,
    "all": math_mask.all_lanes,
}


@dataclass(frozen=True, slots=True, order=True)
class PreludeRequest:
    """One name that generated C uses: of a type or a function of the prelude."""

    symbol: str

    @classmethod
    def type(cls, dtype: str, lanes: int) -> PreludeRequest:
        """The vector type of `lanes` lanes of `dtype`, which is an element type's name or a mask's."""
        return cls(_c_vector(dtype, lanes))

    @classmethod
    def function(cls, name: str, dtype: str, lanes: int) -> PreludeRequest:
        """`tm_<name>` of that vector type, be it `exp`, `select` or `hsum`."""
        return cls(f"tm_{name}_{_c_vector(dtype, lanes)}")

    @classmethod
    def cast(cls, source: str, target: str, lanes: int) -> PreludeRequest:
        """The cast of vectors from dtype `source` to dtype `target`."""
        return cls(f"tm_cast_{_c_vector(source, lanes)}_to_{_c_vector(target, lanes)}")


def prelude_parts(source: str, vector_bytes: int = 64) -> tuple[str, ...]:
    """The prelude for a C source as separate definitions, so that sources in one translation unit share them."""
    done: dict[str, str] = {}
    for symbol in sorted(filter(_SYMBOL.fullmatch, set(_WORD.findall(source)))):  # each word is looked at once
        _define(symbol, vector_bytes, done)
    return (PREAMBLE, *done.values())


def prelude(requests: Collection[PreludeRequest], vector_bytes: int = 64) -> str:
    """C definitions of the requested names and of all that they need, each before its first use; the text is
    deterministic.

    vector_bytes: size of the target's vector registers, 64, 32 or 16; wider vectors are processed in parts. Raises
    CodegenError for a name that the prelude does not have.
    """
    done: dict[str, str] = {}
    for request in sorted(requests):
        _define(request.symbol, vector_bytes, done)
    return "\n".join([PREAMBLE, *done.values(), ""])


def prelude_for(source: str, vector_bytes: int = 64) -> str:
    """The prelude for a C source: its definitions of all names in the source."""
    return "\n".join([*prelude_parts(source, vector_bytes), ""])


def _c_vector(dtype: str, lanes: int) -> str:
    return f"{'b8' if dtype == 'bool' else dtype}x{lanes}"


def _define(symbol: str, vector_bytes: int, done: dict[str, str]) -> None:
    if symbol in done:
        return
    text, needs = _definition(symbol, vector_bytes)
    for need in needs:
        _define(need, vector_bytes, done)
    done[symbol] = text


@lru_cache(maxsize=4096)
def _definition(symbol: str, vector_bytes: int) -> tuple[str, tuple[str, ...]]:
    text = _text(symbol, vector_bytes)
    if text is None:
        raise CodegenError(
            f"the C prelude has no {symbol!r}",
            why="no vector type, function or cast is called so.",
            hint="See taskmap.backend.cpu.prelude for the names, and vector_math.FUNCTIONS for the functions.",
        )
    return text, tuple(dict.fromkeys(need for need in _SYMBOL.findall(text) if need != symbol))


def _text(symbol: str, vector_bytes: int) -> str | None:
    if symbol == PARALLEL:
        return PARALLEL_DECLARATION
    if symbol in SELDOM:
        return f"typedef {SCALAR_TYPES[symbol]} {symbol};"
    if parse_vector(symbol.removesuffix("_u")):
        return typedef(symbol)
    if pair := _PAIR.fullmatch(symbol):
        source, target = parse_vector(pair[2]), parse_vector(pair[3])
        if source is None or target is None or source.lanes != target.lanes:
            return None
        return _CONVERSIONS[pair[1]](source, target, vector_bytes)
    if indexed := _INDEXED.fullmatch(symbol):
        index = parse_vector(indexed[3])
        value = parse_vector(f"{indexed[2]}x{index.lanes}") if index else None
        if index is None or value is None:
            return None
        if indexed[1] == "gather":
            return math_memory.gather(value, index, vector_bytes)
        return math_memory.scatter(value, index)
    if tile := tile_text(symbol):
        return tile
    call = _CALL.fullmatch(symbol)
    vector = parse_vector(call[2]) if call else None
    return _call_text(call[1], vector, vector_bytes) if call and vector else None


def _call_text(name: str, v: Vector, vector_bytes: int) -> str | None:
    if name in _STRUCTURAL:
        return _STRUCTURAL[name](v, vector_bytes)
    if name in COMBINE:
        return reduction(name, v)
    if is_dot(name):
        return dot(name, v, vector_bytes)
    return function(name, v, vector_bytes) if is_function(name) else None
