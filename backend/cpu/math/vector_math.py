"""The functions that generated C may call, by name, and their definitions for each vector type.

Every function takes vectors of one type and returns that type, or a mask for a predicate. The definition is found in
this order: 16-bit floats are computed in f32 and rounded; a vector wider than a register is split into halves; then
come instructions of the CPU (native), f32 by way of f64 (through_f64), polynomials (float32, float64, trigonometry,
inverse_trigonometry), plain arithmetic (float, division, integer), and the C library lane by lane (libm). Reductions
over all lanes are in reduce.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskmap.backend.cpu.math import division, inverse_trigonometry, through_f64, trigonometry
from taskmap.backend.cpu.math import float as math_float
from taskmap.backend.cpu.math import float32 as math_float32
from taskmap.backend.cpu.math import float64 as math_float64
from taskmap.backend.cpu.math import libm as math_libm
from taskmap.backend.cpu.math.integer import LANEWISE, has_scalar, integer_body
from taskmap.backend.cpu.math.native import native
from taskmap.backend.cpu.math.types import Vector
from taskmap.ir.errors import CodegenError

PREDICATES = frozenset(math_float.PREDICATES)
_FAR = frozenset(["far_sin", "far_cos", "far_tan", "far_fmod"])
BINARY = frozenset(
    [*math_float.BINARY, *(name for name in math_libm.BINARY if name not in _FAR), "atan2", "fmod", "max", "min"]
)
UNARY = frozenset(
    [
        *math_float.UNARY,
        *math_float32.BODIES,
        *trigonometry.BODIES["f32"],
        *(name for name in inverse_trigonometry.BODIES["f32"] if name != "atan2"),
        *(name for name in math_libm.UNARY if name not in _FAR),
        *("sqrt", "round", "floor", "ceil", "trunc"),
    ]
)
# Steps of other functions that nothing else needs.
_INTERNAL = (
    _FAR
    | frozenset(["atmost", "atleast", "estimate", "pow2", "scale", "trig_reduce_wide"])
    | frozenset(name for names in (math_float32.SHARED, math_libm.SHARED, trigonometry.STEPS) for name in names)
    | frozenset([*trigonometry.WIDE, *through_f64.STEPS, *LANEWISE])
)
TERNARY = frozenset(["fma"])
FUNCTIONS = UNARY | BINARY | TERNARY | PREDICATES

_CONSTANTS = {dtype: trigonometry.CONSTANTS[dtype] | division.CONSTANTS[dtype] for dtype in ("f32", "f64")}

_LANE_LOOP = """\
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
    two = name in BINARY or name == "far_fmod" or name in LANEWISE
    two = two or name.removeprefix(through_f64.STEP) in through_f64.BINARY
    return ("x", "y", "z")[: 3 if name in TERNARY else 2 if two else 1]


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
    if v.dtype == "f32" and name in through_f64.BODIES:
        return v.render(through_f64.call(name, _operands(name)), W=v.of("f64").name)
    body = next((table[name] for table in _tables(v.dtype) if name in table), None)
    if body is None:
        return _lane_by_lane(name, v) if v.lanes > 1 else _one_lane(name, v)
    sign = "0x80000000u" if v.dtype == "f32" else "0x8000000000000000ull"
    return v.render(body, f=_suffix(v), sign=sign, **_CONSTANTS[v.dtype])


def _tables(dtype: str) -> tuple[Mapping[str, str], ...]:
    """Bodies of functions of this type, by name."""
    polynomials = math_float32.BODIES if dtype == "f32" else math_float64.BODIES
    plain = (math_float.UNARY, math_float.BINARY, math_float.PREDICATES, {"fmod": division.FMOD})
    return (polynomials, trigonometry.BODIES[dtype], inverse_trigonometry.BODIES[dtype], *plain)


def _lane_by_lane(name: str, v: Vector) -> str:
    return v.render(_LANE_LOOP, name=LANEWISE.get(name, name), lane=", ".join(f"{x}[l]" for x in _operands(name)))


def _one_lane(name: str, v: Vector) -> str:
    expression = (math_libm.UNARY | math_libm.BINARY)[name]
    return v.render(f"  return ($V){expression};", f=_suffix(v))


def _suffix(v: Vector) -> str:
    return "f" if v.dtype == "f32" else ""


def _internal(name: str, v: Vector, vector_bytes: int) -> str:
    if name == "trig_reduce_wide":
        wide = v.of("f64")
        if v.lanes > 1 and wide.bytes > vector_bytes:
            return v.render(trigonometry.reduction_in_f64(halves=True), HI=v.half.of("i32").name)
        return v.render(trigonometry.reduction_in_f64(halves=False), W=wide.name)
    if name in trigonometry.STEPS:
        return v.render(trigonometry.REDUCTIONS[v.dtype][name])
    if name == "log_split" and v.dtype == "f64":
        return v.render(math_float64.LOG_SPLIT)
    if name in math_float32.SHARED:
        condition = "defined(__AVX512F__) && !defined(__clang__)" if v.lanes == 16 else "0"
        return v.render(math_float32.SHARED[name], wide=condition)
    if name in math_libm.SHARED:
        return v.render(math_libm.SHARED[name], f=_suffix(v))
    text = native(name, v)
    return text if text is not None else _signature(name, v) + _step(name, v, vector_bytes)


def _step(name: str, v: Vector, vector_bytes: int) -> str:
    """The body of a step that has the signature of a function."""
    if v.lanes > 1 and v.bytes > vector_bytes:
        return _by_halves(name, v)
    if name in LANEWISE:
        text = _lane_by_lane(name, v)
    elif name == "far_fmod" and v.dtype == "f32":
        text = v.render(division.FAR_F32, W=v.of("f64").name)
    elif name in _FAR:
        text = _lane_by_lane(name, v) if v.lanes > 1 else _one_lane(name, v)
    elif name in trigonometry.WIDE:
        text = v.render(trigonometry.WIDE[name], **_CONSTANTS[v.dtype])
    else:
        text = v.render(through_f64.STEPS[name])
    return "{\n" + text + "\n}"
