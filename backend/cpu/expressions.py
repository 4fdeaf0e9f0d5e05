"""C text of expressions.

Floats of 32 and 64 bits are written as C's own arithmetic; 16-bit floats go through the prelude, which computes in f32.
Integers of a tensor wrap, as torch's do, so they go through the prelude too; index arithmetic, which cannot
overflow, is plain C, so that the compiler may reason about it.

A vector predicate is a mask, an integer vector as wide as the elements it was compared from (m8 to m64 per lane), each
lane 0 or -1; a scalar predicate is an int, 0 or 1.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from taskmap.backend.c_expressions import LEAST_I64, ExpressionWriter
from taskmap.backend.cpu.lane_tests import LaneCompare, lane_test
from taskmap.ir import nodes as ir
from taskmap.ir.analysis.codes import is_code
from taskmap.ir.construct import compare, constant_value, static_size
from taskmap.ir.errors import CodegenError
from taskmap.ir.types import DType, bf16, compute_type, f16, f32, f64, i8, i32, i64, u8
from taskmap.ir.visit import walk_exprs

_C_TYPES = {"bool": "b8", "e4m3": "fa8", "e5m2": "fb8"}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "tdiv": "/", "tmod": "%"}
_BOOLEAN = {"and": "&", "or": "|", "xor": "^", "add": "|", "max": "|", "mul": "&", "min": "&"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_OF_MASKS = {"lt": ">", "le": ">=", "gt": "<", "ge": "<=", "eq": "==", "ne": "!="}
"""True is -1 in a mask, less than false."""
_HELPERS = {"floordiv": "floor_div", "mod": "remainder"}
_FOLDS = {"sum": "hsum", "prod": "hprod", "max": "hmax", "min": "hmin"}


def c_type(dtype: DType, lanes: int = 1) -> str:
    """The name of a type in generated C: f32, i64, b8; f32x16 for a vector."""
    base = _C_TYPES.get(dtype.name, dtype.name)
    return base if lanes == 1 else f"{base}x{lanes}"


def mask_type(bits: int, lanes: int) -> str:
    """The type of a mask for elements of ``bits`` bits."""
    return f"m{bits}x{lanes}"


@dataclass(slots=True)
class Expressions(ExpressionWriter[str]):
    """Expressions of one kernel as C. ``masks``: the width in bits of the mask of each variable that holds a vector
    predicate. ``positions``: variables whose values are arithmetic on indices alone. ``vector_bytes``: the size of a
    register."""

    LANGUAGE = "C"

    names: dict[object, str] = field(default_factory=dict)
    masks: dict[ir.Var, int] = field(default_factory=dict)
    positions: set[ir.Var] = field(default_factory=set)
    vector_bytes: int = 64

    def name(self, key: ir.Var | ir.Buffer, prefix: str = "") -> str:
        """The C name of a variable or a buffer, created at its first use. Names that the prelude reserves, or that are
        not valid C, get a letter in front."""
        known = self.names.get(key)
        if known is None:
            stem = re.sub(r"[^a-zA-Z0-9]", "", key.name)[:12]
            if not prefix and (not stem or stem[0].isdigit() or stem == "tm"):
                prefix = "v"
            known = self.names[key] = f"{prefix}{stem}_{len(self.names)}"
        return known

    def of(self, e: ir.Expr) -> str:
        """An expression."""
        return self.written(e)

    def address(self, e: ir.Expr) -> str:
        """An expression whose value is an address or an extent: it does not overflow."""
        return self.within_address(e)

    def _var(self, e: ir.Var) -> str:
        return self.name(e)

    def _const(self, e: ir.Const) -> str:
        return literal(e)

    def value_type(self, e: ir.Expr) -> str:
        """The C type of a variable that holds ``e``."""
        if e.dtype.is_bool:
            return "int" if e.lanes == 1 else mask_type(self.mask_bits(e), e.lanes)
        return c_type(e.dtype, e.lanes)

    def stored(self, value: ir.Expr, dtype: DType) -> str:
        """A value in its memory format: bools as bytes."""
        if not dtype.is_bool or value.lanes == 1:
            return self.of(value)
        return f"tm_mask_{mask_type(self.mask_bits(value), value.lanes)}_to_b8x{value.lanes}({self.of(value)})"

    def is_position(self, e: ir.Expr) -> bool:
        """True if ``e`` is arithmetic on loop variables, sizes and ``positions`` alone."""
        if self.is_index(e):
            return True
        leaves = (x for x in walk_exprs(e) if not isinstance(x, (ir.Const, ir.Binary, ir.Unary, ir.Select, ir.Compare)))
        return all(isinstance(x, ir.Var) and (x in self.indices or x in self.positions) for x in leaves)

    def mask_bits(self, e: ir.Expr) -> int:
        """The element width in bits of the mask that ``e`` evaluates to."""
        if isinstance(e, ir.Compare):
            a, b = e.a, e.b
            if self._lane_test(e) is not None:
                return 32
            return max(self.mask_bits(a), self.mask_bits(b)) if a.dtype.is_bool else compute_type(a.dtype).bits
        if isinstance(e, (ir.Unary, ir.Broadcast)):
            return self.mask_bits(e.a)
        if isinstance(e, (ir.Binary, ir.Select)):
            return max(self.mask_bits(e.a), self.mask_bits(e.b))
        if isinstance(e, ir.Cast):
            return self.mask_bits(e.a) if e.a.dtype.is_bool else e.a.dtype.bits
        if isinstance(e, ir.Call):
            return e.args[0].dtype.bits
        if isinstance(e, ir.Load) and e.buffer.scope is not ir.Scope.REGISTER:
            return 8
        return self.masks.get(e, 32) if isinstance(e, ir.Var) else 32

    def as_mask(self, e: ir.Expr, bits: int) -> str:
        """A vector predicate as a mask of that width."""
        if isinstance(e, ir.Broadcast):
            return self._same_for_all(e, bits)
        if isinstance(e, ir.Compare) and self._lane_test(e) is None and (truth := _known_truth(e)) is not None:
            return f"(({mask_type(bits, e.lanes)}){{{', '.join('-1' if holds else '0' for holds in truth)}}})"
        have, code = self.mask_bits(e), self.of(e)
        return code if have == bits else f"tm_mask_m{have}x{e.lanes}_to_m{bits}x{e.lanes}({code})"

    def _helper(self, name: str, e: ir.Expr, *args: str) -> str:
        return f"tm_{name}_{c_type(e.dtype)}x{e.lanes}({', '.join(args)})"

    def _load(self, e: ir.Load) -> str:
        (where,) = e.indices
        b = e.buffer
        if b.scope is ir.Scope.REGISTER:
            return f"{self.name(b, 'r')}_{register_index(b, where)}"
        if e.lanes == 1:
            return f"{self.name(b)}[{self.address(where)}]"
        t = c_type(b.dtype, e.lanes)
        if isinstance(where, ir.Ramp) and constant_value(where.stride) == 1:
            code = f"tm_load_{t}({self.name(b)} + {self.address(where.base)})"
        elif isinstance(where, ir.Ramp):
            base, step = self.address(where.base), self.address(where.stride)
            code = f"tm_load_strided_{t}({self.name(b)} + {base}, {step})"
        elif (first := _of_pairs(where)) is not None:
            code = f"tm_load_twice_{t}({self.name(b)} + {self.address(first)})"
        elif (byte := looked_up(e)) is not None:
            code = f"tm_look_up_{t}({self.name(b)}, {self.of(byte)})"
        else:
            code = f"tm_gather_{c_type(b.dtype)}_i64x{e.lanes}({self.name(b)}, {self.address(where)})"
        return f"tm_mask_b8x{e.lanes}_to_m8x{e.lanes}({code})" if b.dtype.is_bool else code

    def _unary(self, e: ir.Unary) -> str:
        a = self.of(e.a)
        if e.op == "not":
            if e.dtype.is_bool and e.lanes == 1:
                return f"(!{a})"
            return f"(~{a})" if e.lanes > 1 else f"(({c_type(e.dtype)})~{a})"
        native = e.dtype.is_float and e.dtype not in (f16, bf16)
        if e.op == "neg" and (native or (e.dtype == i64 and e.lanes == 1 and self._unwrapped(e))):
            return f"(-{a})"
        return self._helper(e.op, e, a)

    def _unwrapped(self, e: ir.Expr) -> bool:
        return self._addressing or self.is_index(e)

    def _binary(self, e: ir.Binary) -> str:
        if e.dtype.is_bool:
            return self._binary_of_bools(e)
        if e.op in _HELPERS and e.lanes > 1 and (lanes := _known_lanes(e)) is not None:
            # The compiler would divide lane by lane, in every iteration of the loop.
            return f"(({c_type(e.dtype, e.lanes)}){{{', '.join(map(str, lanes))}}})"
        if (limit := _limit(e)) is not None:
            return self._limited(e, limit)
        a, b = self.of(e.a), self.of(e.b)
        if e.op in ("shl", "shr"):
            return self._shift(e, a, b)
        if self._is_infix(e):
            return f"({a} {_INFIX[e.op]} {b})"
        return self._helper(_HELPERS.get(e.op, e.op), e, a, b)

    def _is_infix(self, e: ir.Binary) -> bool:
        if e.op not in _INFIX or e.dtype in (f16, bf16):
            return False
        if e.dtype.is_float or e.op in ("and", "or", "xor", "tdiv", "tmod"):
            return True
        return e.dtype == i64 and e.lanes == 1 and self._unwrapped(e)

    def _binary_of_bools(self, e: ir.Binary) -> str:
        if e.op not in _BOOLEAN:
            raise CodegenError(f"{e.op} of bools cannot be written in C")
        if e.lanes == 1:
            return f"({self.of(e.a)} {_BOOLEAN[e.op]} {self.of(e.b)})"
        bits = self.mask_bits(e)
        return f"({self.as_mask(e.a, bits)} {_BOOLEAN[e.op]} {self.as_mask(e.b, bits)})"

    def _shift(self, e: ir.Binary, a: str, b: str) -> str:
        """Shifts by less than the width; bits shifted out to the left are lost, as in an unsigned integer."""
        t = c_type(e.dtype, e.lanes)
        if e.op == "shr":
            return f"(({t})({a} >> {b}))"
        unsigned = f"u{e.dtype.bits}" if e.lanes == 1 else f"u{e.dtype.bits}x{e.lanes}"
        return f"(({t})(({unsigned}){a} << ({unsigned}){b}))"

    def _lane_test(self, e: ir.Compare) -> LaneCompare | None:
        """A comparison of consecutive indices: their difference to the bound does not overflow."""
        test = lane_test(e)
        return test if test is not None and self.is_position(test.base) and self.is_position(test.bound) else None

    def _compare(self, e: ir.Compare) -> str:
        dtype, lanes = e.a.dtype, e.lanes
        if (test := self._lane_test(e)) is not None:
            t, by = f"i32x{lanes}", f" * tm_splat_i32x{lanes}({test.stride})" if test.stride > 1 else ""
            bound = f"{self.address(test.bound)} - {self.address(test.base)}"
            near = f"tm_splat_{t}(tm_min_i64x1(tm_max_i64x1({bound}, -1LL), {test.beyond}LL))"  # converted: it fits
            return f"((m32x{lanes})(tm_iota_{t}(){by} {_COMPARE[test.op]} {near}))"
        if lanes > 1 and dtype.is_bool:
            bits = self.mask_bits(e)
            code = f"({self.as_mask(e.a, bits)} {_OF_MASKS[e.op]} {self.as_mask(e.b, bits)})"
            return f"(({mask_type(bits, lanes)}){code})"
        a, b = (convert(self.of(x), dtype, compute_type(dtype), lanes) for x in (e.a, e.b))
        bits = compute_type(dtype).bits
        if lanes > 1 and lanes * bits > 8 * self.vector_bytes:
            return f"tm_{e.op}_{c_type(compute_type(dtype), lanes)}({a}, {b})"
        code = f"({a} {_COMPARE[e.op]} {b})"
        return code if lanes == 1 else f"(({mask_type(compute_type(dtype).bits, lanes)}){code})"

    def _select(self, e: ir.Select) -> str:
        if e.lanes == 1:
            return f"({self.of(e.cond)} ? {self.of(e.a)} : {self.of(e.b)})"
        if e.dtype.is_bool:
            bits = self.mask_bits(e)
            cond, a, b = self.as_mask(e.cond, bits), self.as_mask(e.a, bits), self.as_mask(e.b, bits)
            return f"(({cond} & {a}) | (~{cond} & {b}))"
        if (limit := _limit(e)) is not None:
            return self._limited(e, limit)
        return self._helper("select", e, self.as_mask(e.cond, e.dtype.bits), self.of(e.a), self.of(e.b))

    def _limited(self, e: ir.Binary | ir.Select, limit: _Limit) -> str:
        return self._helper(limit.name, e, self.of(limit.x), self.of(limit.bound))

    def _cast(self, e: ir.Cast) -> str:
        source, dtype, lanes = e.a.dtype, e.dtype, e.lanes
        if source.is_bool and not dtype.is_bool:
            return self._cast_of_bool(e)
        if (step := _step_of_quantisation(e)) is not None:
            name, inside = step
            return f"tm_{name}_{c_type(source)}x{lanes}_to_{c_type(dtype)}x{lanes}({self.of(inside)})"
        code = self.of(e.a)
        if source.is_bool:
            return code
        if dtype.is_bool:
            truth = f"m{source.bits}x{lanes}" if lanes > 1 else "b8x1"
            return f"tm_cast_{c_type(source)}x{lanes}_to_{truth}({code})"
        if isinstance(e.a, ir.Ramp) and dtype == i32:
            return self._narrow_ramp(e.a)
        return convert(code, source, dtype, lanes)

    def _cast_of_bool(self, e: ir.Cast) -> str:
        dtype, lanes = e.dtype, e.lanes
        if lanes > 1:
            mask = mask_type(dtype.bits, lanes)
            return f"tm_cast_{mask}_to_{c_type(dtype, lanes)}({self.as_mask(e.a, dtype.bits)})"
        code = self.of(e.a)
        return f"((bf16)({code} ? 0x3f80 : 0))" if dtype == bf16 else f"(({c_type(dtype)})({code} != 0))"

    def _call(self, e: ir.Call) -> str:
        if e.name == "checked_index":
            self.needs_error = True
            position, size = (self.within_address(a, addressing=False) for a in e.args)
            return _checked_index(e.lanes, position, size)
        args = ", ".join(self.of(a) for a in e.args)
        return f"tm_{e.name}_{c_type(e.args[0].dtype)}x{e.lanes}({args})"

    def _intrinsic(self, e: ir.Intrinsic) -> str:
        instruction = e.instruction
        if instruction.targets.kind != "cpu":
            raise CodegenError(f"{instruction.name} cannot be written in C", why=f"it is for {instruction.targets}.")
        c, a, b = (self.of(arg) for arg in e.args)
        return instruction.text.format(c=c, a=a, b=b)

    def _ramp(self, e: ir.Ramp) -> str:
        t = f"i64x{e.lanes}"
        base, stride = self.address(e.base), self.address(e.stride)
        return f"(tm_splat_{t}({base}) + tm_iota_{t}() * tm_splat_{t}({stride}))"

    def _narrow_ramp(self, e: ir.Ramp) -> str:
        """A ramp cast to i32, computed in 32 bits: unsigned, so that it wraps as the cast does."""
        t, u = f"i32x{e.lanes}", f"u32x{e.lanes}"
        base, stride = self.address(e.base), self.address(e.stride)
        return f"(({t})(({u})tm_splat_{t}({base}) + ({u})tm_iota_{t}() * ({u})tm_splat_{t}({stride})))"

    def _broadcast(self, e: ir.Broadcast) -> str:
        if e.dtype.is_bool:
            return self._same_for_all(e, self.mask_bits(e.a))
        return f"tm_splat_{c_type(e.dtype, e.lanes)}({self.of(e.a)})"

    def _same_for_all(self, e: ir.Broadcast, bits: int) -> str:
        """A mask of that width with the same truth in every lane."""
        return f"(({mask_type(bits, e.lanes)})tm_splat_i{bits}x{e.lanes}((i{bits})-({self.of(e.a)} != 0)))"

    def _lanereduce(self, e: ir.LaneReduce) -> str:
        code = self.of(e.a)
        if e.a.dtype.is_bool:
            some = _BOOLEAN[{"sum": "or", "prod": "and"}.get(e.op, e.op)] == "|"
            return f"tm_{'any' if some else 'all'}_{mask_type(self.mask_bits(e.a), e.a.lanes)}({code})"
        if e.op not in _FOLDS:
            raise CodegenError(f"{e.op} over the lanes of a vector of {e.dtype} cannot be written in C")
        return f"tm_{_FOLDS[e.op]}_{c_type(e.a.dtype, e.a.lanes)}({code})"


class _Limit(NamedTuple):
    """The function of the prelude that limits ``x`` by ``bound``. Where both are equal, or one is a NaN, it is x."""

    name: str
    x: ir.Expr
    bound: ir.Expr


def _limit(e: ir.Binary | ir.Select) -> _Limit | None:
    """One instruction for a vector of floats limited by a number, with the same results for a NaN and for zeros of
    either sign; None for anything else."""
    if e.lanes == 1 or e.dtype not in (f32, f64):
        return None
    if isinstance(e, ir.Binary):
        name = {"min": "atmost", "max": "atleast"}.get(e.op)
        for x, bound in ((e.a, e.b), (e.b, e.a)):
            if name is not None and _number(bound):  # not 0: of two zeros, max has the second
                return _Limit(name, x, bound)
        return None
    test = e.cond
    if not isinstance(test, ir.Compare) or test.op not in ("lt", "gt") or {test.a, test.b} != {e.a, e.b}:
        return None
    if _number(test.b) is None:
        return None
    name = "atmost" if (test.op == "lt") == (e.a == test.a) else "atleast"
    return _Limit(name, e.b, e.a)


def _number(e: ir.Expr) -> float | None:
    """The value of all lanes of a constant that is not a NaN, else None."""
    value = constant_value(e.a if isinstance(e, ir.Broadcast) else e)
    return None if value is None or value != value else float(value)


_BYTES = {i8: (-128, 127), u8: (0, 255)}


def _step_of_quantisation(e: ir.Cast) -> tuple[str, ir.Expr] | None:
    """The function of the prelude that a cast of vectors is together with the operations before it, and its operand:
    i32 from rounded f32, a byte from i32 held in its range, bf16 from four bits. None for any other cast."""
    a = e.a
    if e.lanes < 4:
        return None
    if is_code(e):
        assert isinstance(a, ir.Binary)
        return "code", a.a
    if e.dtype == i32 and isinstance(a, ir.Call) and a.name == "round" and a.dtype == f32:
        return "nearest", a.args[0]
    if e.dtype not in _BYTES or a.dtype != i32 or not isinstance(a, ir.Binary) or a.op != "min":
        return None
    inside, (low, high) = a.a, _BYTES[e.dtype]
    if not isinstance(inside, ir.Binary) or inside.op != "max":
        return None
    return ("clamped", inside.a) if (_number(inside.b), _number(a.b)) == (low, high) else None


def looked_up(e: ir.Load) -> ir.Expr | None:
    """The bytes whose values number the elements that a vector load reads from a table of bytes with an entry for each
    value; None for any other load."""
    (where,) = e.indices
    if not isinstance(where, ir.Cast) or where.a.dtype != u8 or e.buffer.dtype not in (u8, i8):
        return None
    return where.a if static_size(e.buffer.shape[0]) == 256 and 8 <= e.lanes <= 64 else None


def convert(code: str, source: DType, dtype: DType, lanes: int) -> str:
    """A number converted to another type of number."""
    if source == dtype:
        return code
    return f"tm_cast_{c_type(source)}x{lanes}_to_{c_type(dtype)}x{lanes}({code})"


def register_index(b: ir.Buffer, where: ir.Expr) -> int:
    """The first element of a register buffer that an index denotes. Raises CodegenError if it is not a constant."""
    base = where.base if isinstance(where, ir.Ramp) else where
    start = constant_value(base)
    if start is None or (isinstance(where, ir.Ramp) and constant_value(where.stride) != 1):
        raise CodegenError(
            f"register buffer {b.name!r} is indexed by a value that is not known when compiling",
            hint="Unroll the loops that index it.",
        )
    return int(start)


def _known_lanes(e: ir.Expr) -> list[int] | None:
    """The lanes of a vector of indices that depends on nothing, as in (0, 1, 2, 3, ...) // 2; None for any other."""
    if e.dtype != i64:
        return None
    if isinstance(e, ir.Ramp):
        base, stride = constant_value(e.base), constant_value(e.stride)
        return None if base is None or stride is None else [int(base + i * stride) for i in range(e.lanes)]
    if isinstance(e, ir.Broadcast):
        value = constant_value(e.a)
        return None if value is None else [int(value)] * e.lanes
    if not isinstance(e, ir.Binary) or e.op not in _HELPERS:
        return None
    a, b = _known_lanes(e.a), _known_lanes(e.b)
    if a is None or b is None or 0 in b:
        return None
    return [x // y if e.op == "floordiv" else x % y for x, y in zip(a, b, strict=True)]


def _of_pairs(where: ir.Expr) -> ir.Expr | None:
    """The first index of lanes of which each two have the same, as in base + (0, 0, 1, 1, 2, 2, ...); None for
    others."""
    if not isinstance(where, ir.Binary) or where.op != "add" or not isinstance(where.a, ir.Broadcast):
        return None
    pairs = [lane // 2 for lane in range(where.lanes)]
    return where.a.a if _known_lanes(where.b) == pairs else None


def _known_truth(e: ir.Compare) -> list[bool] | None:
    """The lanes of a comparison of such vectors; compilers do not see through the conversions of its mask."""
    a, b = _known_lanes(e.a), _known_lanes(e.b)
    if a is None or b is None:
        return None
    return [bool(constant_value(compare(e.op, x, y))) for x, y in zip(a, b, strict=True)]


def literal(e: ir.Const) -> str:
    """A constant. bf16 is written as its bits, since C has no such type; a NaN as the quiet one."""
    if e.dtype.is_bool:
        return "1" if e.value else "0"
    if not e.dtype.is_float:
        return _integer_literal(int(e.value), e.dtype)
    value = float(e.value)
    if e.dtype == bf16:
        return f"0x{_bf16_bits(value):04x}"
    suffix = "" if e.dtype.name == "f64" else "f"
    if math.isnan(value):
        code = f'__builtin_nan{suffix}("")'
    elif math.isinf(value):
        code = f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
    else:
        code = f"({value!r}{suffix})" if math.copysign(1, value) < 0 else f"{value!r}{suffix}"
    return f"((f16){code})" if e.dtype == f16 else code


def _integer_literal(value: int, dtype: DType) -> str:
    if value == -(1 << 63):
        return LEAST_I64
    code = f"{value}{'LL' if dtype == i64 else ''}"
    return f"({code})" if value < 0 else code


def _bf16_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    return (int(bits) + 0x7FFF + ((int(bits) >> 16) & 1)) >> 16


def _checked_index(lanes: int, position: str, size: str) -> str:
    """An index that may count from the end; an index out of range sets the error flag and becomes 0."""
    if lanes == 1:
        check = "if (i < 0) i += n; if (i < 0 || i >= n) { *error = 1; i = 0; }"
        return f"({{ i64 i = {position}; const i64 n = {size}; {check} i; }})"
    return f"tm_checked_index_i64x{lanes}({position}, {size}, error)"
