"""The functions that generated C may call, by name, and their definitions for each vector type.

Every function takes vectors of one type and returns that type, or a mask for a predicate. The definition is found in
this order: 16-bit floats are computed in f32 and rounded; a vector wider than a register is split into halves; then
come instructions of the CPU (native), polynomials (float32, float64), plain arithmetic (float, integer), and the C
library lane by lane (libm). Reductions over all lanes are in reduce.
"""

from __future__ import annotations

from taskmap.backend.cpu.math import float as math_float
from taskmap.backend.cpu.math import float32 as math_float32
from taskmap.backend.cpu.math import float64 as math_float64
from taskmap.backend.cpu.math import libm as math_libm
from taskmap.backend.cpu.math.integer import has_scalar, integer_body
from taskmap.backend.cpu.math.native import native
from taskmap.backend.cpu.math.types import Vector
from taskmap.ir.errors import CodegenError

PREDICATES = frozenset(math_float.PREDICATES)
BINARY = frozenset([*math_float.BINARY, *math_libm.BINARY, "max", "min"])
UNARY = frozenset(
    [
        *math_float.UNARY,
        *math_float32.BODIES,
        *(name for name in math_libm.UNARY if not name.startswith("far_")),
        *("sqrt", "round", "floor", "ceil", "trunc"),
    ]
)
# Steps of other functions that nothing else needs.
_INTERNAL = frozenset(["atmost", "atleast", "pow2", "scale", "far_sin", "far_cos", "trig_reduce"]) | {
    *math_float32.SHARED,
    *math_libm.SHARED,
}
TERNARY = frozenset(["fma"])
FUNCTIONS = UNARY | BINARY | TERNARY | PREDICATES

_LANEWISE = """\
  $V r = x;
#pragma GCC unroll 1
  for (int l = 0; l < $L; l++) r[l] = tm_${name}_${D}x1($lane);
  return r;"""


def is_function(name: str) -> bool:
    """True if `tm_<name>_V` is defined here, for some vector types at least."""
    return name in FUNCTIONS or name in _INTERNAL


def function(name: str, v: Vector, vector_bytes: int) -> str:
    """Definition of `tm_<name>_V`; a register has `vector_bytes` bytes. Raises CodegenError if there is none."""
    if name in _INTERNAL:
        return _internal(name, v, vector_bytes)
    if v.is_half:
        return _signature(name, v) + _through_f32(name, v)
    if v.lanes > 1 and v.bytes > vector_bytes:
        return _signature(name, v) + _by_halves(name, v)
    if not v.is_float:
        return _signature(name, v) + "{\n" + _integer(name, v) + "\n}"
    return native(name, v) or _signature(name, v) + "{\n" + _float(name, v) + "\n}"


def _operands(name: str) -> tuple[str, ...]:
    return ("x", "y", "z")[: 3 if name in TERNARY else 2 if name in BINARY else 1]


def _signature(name: str, v: Vector) -> str:
    arguments = ", ".join(f"$V {x}" for x in _operands(name))
    return v.render(f"TM_INLINE {'$M' if name in PREDICATES else '$V'} tm_{name}_$V({arguments}) ")


def _through_f32(name: str, v: Vector) -> str:
    wide = v.of("f32")
    arguments = ", ".join(f"tm_cast_$V_to_$F({x})".replace("$V", "${V}") for x in _operands(name))
    back = f"tm_mask_{wide.mask.name}_to_{v.mask.name}" if name in PREDICATES else "tm_cast_${F}_to_$V"
    return v.render(f"{{ return {back}(tm_{name}_$F({arguments})); }}")


def _by_halves(name: str, v: Vector) -> str:
    result = v.mask if name in PREDICATES else v
    halves = (
        f"tm_{name}_$H(" + ", ".join(f"tm_{part}_$V({x})" for x in _operands(name)) + ")" for part in ("lo", "hi")
    )
    return v.render(f"{{ return tm_join_{result.name}({', '.join(halves)}); }}")


def _integer(name: str, v: Vector) -> str:
    body = integer_body(name, v)
    if body is not None:
        return body
    if has_scalar(name):
        return _lane_by_lane(name, v)
    raise CodegenError(
        f"there is no {name} of {v.name} in C",
        why="it is a function of floats.",
        hint=f"Cast to f32 or f64 first; integers have {', '.join(_integer_functions(v))}.",
    )


def _integer_functions(v: Vector) -> list[str]:
    return sorted(name for name in FUNCTIONS if integer_body(name, v) or has_scalar(name))


def _float(name: str, v: Vector) -> str:
    polynomials = math_float32.BODIES if v.dtype == "f32" else math_float64.BODIES
    tables = (polynomials, math_float.UNARY, math_float.BINARY, math_float.PREDICATES)
    body = next((table[name] for table in tables if name in table), None)
    if body is None:
        return _lane_by_lane(name, v) if v.lanes > 1 else _one_lane(name, v)
    sign = "0x80000000u" if v.dtype == "f32" else "0x8000000000000000ull"
    return v.render(body, f=_suffix(v), sign=sign)


def _lane_by_lane(name: str, v: Vector) -> str:
    return v.render(_LANEWISE, name=name, lane="x[l], y[l]" if name in BINARY else "x[l]")


def _one_lane(name: str, v: Vector) -> str:
    expression = math_libm.BINARY[name] if name in BINARY else math_libm.UNARY[name]
    return v.render(f"  return ($V){expression};", f=_suffix(v))


def _suffix(v: Vector) -> str:
    return "f" if v.dtype == "f32" else ""


def _internal(name: str, v: Vector, vector_bytes: int) -> str:
    if name == "trig_reduce":
        wide = v.of("f64")
        if v.lanes > 1 and wide.bytes > vector_bytes:
            return v.render(math_float32.TRIG_REDUCE_SPLIT, HI=v.half.of("i32").name)
        return v.render(math_float32.TRIG_REDUCE, W=wide.name)
    if name in math_float32.SHARED:
        condition = "defined(__AVX512F__) && !defined(__clang__)" if v.lanes == 16 else "0"
        return v.render(math_float32.SHARED[name], wide=condition)
    if name in math_libm.SHARED:
        return v.render(math_libm.SHARED[name], f=_suffix(v))
    if name.startswith("far_"):
        return _signature(name, v) + "{\n" + (_lane_by_lane(name, v) if v.lanes > 1 else _one_lane(name, v)) + "\n}"
    text = native(name, v)
    assert text is not None
    return text
