"""CUDA C++ text of expressions.

Expressions use plain C++ if its semantics fit; those with PyTorch's semantics (integers that wrap, NaN in extrema,
casts, functions) call device/portable.cuh. Index arithmetic does not overflow, so it is plain C++, in ``int`` if the
ranges of its variables prove that it fits 32 bits, else in ``long long``.

The condition of a select or an if is known to hold on its side: clamps that it makes redundant are left out, because
C++ evaluates only the side that is taken.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from taskmap.backend.c_expressions import LEAST_I64, ExpressionWriter
from taskmap.ir import nodes as ir
from taskmap.ir.analysis.alignment import Multiples
from taskmap.ir.analysis.bounds import Facts, Interval, node_bounds
from taskmap.ir.construct import constant_value
from taskmap.ir.errors import CodegenError
from taskmap.ir.isa.entry import Instruction, Place
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import DType, bf16, boolean, f16, f32, i32, i64, tf32
from taskmap.ir.visit import walk_exprs

_TYPES = {
    "f64": "double", "f32": "float", "f16": "tm_f16", "bf16": "tm_bf16", "i64": "long long", "i32": "int",
    "i16": "short", "i8": "signed char", "u8": "unsigned char", "bool": "bool",
    "tf32": "float", "e4m3": "tm_e4m3", "e5m2": "tm_e5m2",
}  # fmt: skip

# Binding strength of C++'s operators, the tightest highest.
_ATOM, _UNARY, _PRODUCT, _SUM, _COMPARE, _EQUAL, _BITS, _AND, _OR, _CHOICE, _LOWEST = range(20, 9, -1)
_INFIX = {
    "add": (_SUM, "+"), "sub": (_SUM, "-"), "mul": (_PRODUCT, "*"), "div": (_PRODUCT, "/"), "tdiv": (_PRODUCT, "/"),
    "tmod": (_PRODUCT, "%"), "and": (_BITS, "&"), "or": (_BITS, "|"), "xor": (_BITS, "^"),
}  # fmt: skip
_OF_BOOLS = {
    "and": (_AND, "&&"), "mul": (_AND, "&&"), "min": (_AND, "&&"), "or": (_OR, "||"), "add": (_OR, "||"),
    "max": (_OR, "||"), "xor": (_EQUAL, "!="),
}  # fmt: skip
_COMPARISONS = {
    "lt": (_COMPARE, "<"), "le": (_COMPARE, "<="), "gt": (_COMPARE, ">"), "ge": (_COMPARE, ">="),
    "eq": (_EQUAL, "=="), "ne": (_EQUAL, "!="),
}  # fmt: skip

_NARROW = (f16, bf16)
_APPROXIMATE = frozenset(("sigmoid",))
"""Functions that device/approximate.cuh has in few instructions."""
_ORDER = frozenset(("lt", "le", "gt", "ge"))
_INT = Interval(-(1 << 31), (1 << 31) - 1)

# Reserved names: words of C++ and of Python, and names that headers of the host may define as macros.
_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double
dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true
try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq half linux unix
errno stdin stdout stderr assert i386 signbit isnan isinf isfinite y0 y1 yn j0 j1 jn
"""
_RESERVED = frozenset((*keyword.kwlist, *re.findall(r"\w+", _WORDS)))


def cuda_type(dtype: DType, lanes: int = 1) -> str:
    """The C++ type of a value: float, tm_f16, tm_vec<float, 4>."""
    name = _TYPES.get(dtype.name)
    if name is None:
        raise CodegenError(f"{dtype} cannot be written in CUDA C++")
    return name if lanes == 1 else f"tm_vec<{name}, {lanes}>"


@dataclass(slots=True)
class _Text:
    """C++ of an expression: how tightly it binds, and, for index arithmetic, whether its C++ type is ``long long``."""

    code: str
    level: int = _ATOM
    wide: bool = True

    def at(self, level: int) -> str:
        return self.code if self.level >= level else f"({self.code})"


@dataclass(slots=True)
class Expressions(ExpressionWriter[_Text]):
    """Expressions of one kernel as CUDA C++, in order of appearance.

    A factor of a value that is converted to a 16-bit float needs no more digits than that keeps: there, a sigmoid uses
    the hardware's approximations, without a division. In a sum it might be cancelled, so it needs all digits.

    wide: those of its indices that are ``long long``. unrolled: loop variables that are constants once the compiler has
    unrolled their loops. families: the device code that has been used. functions: the micro-kernels that have been
    called, by the names of their functions.
    """

    LANGUAGE = "CUDA C++"

    names: dict[ir.Var | ir.Buffer | ir.TensorMap, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: {"error"})
    wide: set[ir.Var] = field(default_factory=set)
    ranges: dict[ir.Var, Interval] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    multiples: Multiples = field(default_factory=Multiples)
    families: set[str] = field(default_factory=set)
    functions: dict[str, Instruction] = field(default_factory=dict)
    target: GpuTarget | None = None
    unrolled: set[ir.Var] = field(default_factory=set)
    _narrow: tuple[ir.Expr, ...] = ()
    _bounds: dict[ir.Expr, Interval] = field(default_factory=dict)

    def name(self, key: ir.Var | ir.Buffer | ir.TensorMap) -> str:
        """The C++ name of a variable or a buffer: its own, made an identifier, and numbered if it is taken."""
        known = self.names.get(key)
        if known is None:
            stem = re.sub(r"[^a-z0-9]+", "_", key.name.lower())[:20].strip("_")
            if not stem or stem[0].isdigit() or stem.startswith("tm") or stem in _RESERVED:
                stem = f"v_{stem}".rstrip("_")
            known, count = stem, 0
            while known in self.taken:
                count += 1
                known = f"{stem}_{count}"
            self.names[key] = known
            self.taken.add(known)
        return known

    def bounds(self, e: ir.Expr) -> Interval:
        """The range of an integer expression, by the ranges of its variables."""
        known = self._bounds.get(e)
        if known is None:
            known = self._bounds[e] = node_bounds(e, self.ranges, self.bounds)
        return known

    def fits_int(self, e: ir.Expr) -> bool:
        """True if every value of ``e`` is proved to fit into 32 bits."""
        interval = self.bounds(e)
        return _INT.lo <= interval.lo and interval.hi <= _INT.hi

    def bind(self, var: ir.Var, extent: ir.Expr | int) -> None:
        """Declares that ``var`` runs over [0, extent)."""
        self.indices.add(var)
        top = extent - 1 if isinstance(extent, int) else self.bounds(extent).hi - 1
        self.ranges[var] = Interval(0, max(top, 0))
        self.facts = self.facts.below(var, extent)
        if not self.fits_int(var):
            self.wide.add(var)

    def define(self, var: ir.Var, value: ir.Expr) -> None:
        """Declares that ``var`` names ``value``."""
        if value.dtype == i64 and value.lanes == 1:
            self.ranges[var] = self.bounds(value)
            self.multiples.define(var, value)
            if self.is_index(value):
                self.indices.add(var)
            if not self.fits_int(var):
                self.wide.add(var)
        if value.dtype.is_int and value.lanes == 1:
            self.facts = self.facts.define(var, value)

    @contextmanager
    def known(self, cond: ir.Expr | None = None, holds: bool = True, *, stores: bool = True) -> Iterator[None]:
        """Inside, ``cond`` holds, or does not hold; afterwards the facts learnt inside are forgotten, and names are
        free again.

        stores: memory may be written inside, which may invalidate the part of the condition that reads it.
        """
        facts, multiples, taken = self.facts, self.multiples, set(self.taken)
        parts = () if cond is None else _lasting(cond, holds) if stores else (cond,)
        for part in parts:
            self.facts = self.facts.assume(part, holds)
            self.multiples = self.multiples.assume(part) if holds else self.multiples
        try:
            yield
        finally:
            self.facts, self.multiples, self.taken = facts, multiples, taken

    def of(self, e: ir.Expr) -> str:
        """An expression."""
        return self.written(e).code

    def address(self, e: ir.Expr) -> str:
        """An expression whose value is an address or an extent: it does not overflow."""
        return self.within_address(e).code

    def int_type(self, e: ir.Expr) -> str:
        """The C++ type of a variable that holds an index."""
        return "int" if self.fits_int(e) else "long long"

    def value_type(self, e: ir.Expr) -> str:
        """The C++ type of a variable that holds ``e``."""
        if e.dtype == i64 and e.lanes == 1:
            return self.int_type(e)
        return cuda_type(e.dtype, e.lanes)

    def check_register(self, b: ir.Buffer, where: ir.Expr) -> None:
        """Checks that an index of registers, which have no addresses, is constant after unrolling. Raises
        CodegenError."""
        if b.scope is not ir.Scope.REGISTER:
            return
        for e in walk_exprs(where):
            if isinstance(e, ir.Load) or (isinstance(e, ir.Var) and e not in self.unrolled):
                raise CodegenError(
                    f"register buffer {b.name!r} is indexed by a value that is not known when compiling",
                    hint="Unroll the loops that index it, or make it local().",
                )

    def pointer(self, b: ir.Buffer, at: ir.Expr) -> str:
        """The address of an element."""
        offset = self.within_address(at)
        return self.name(b) if offset.code == "0" else f"{self.name(b)} + {offset.at(_SUM)}"

    def lanes_pointer(self, b: ir.Buffer, where: ir.Ramp) -> tuple[str, int]:
        """The address of neighbours, and its alignment in elements, up to their number."""
        return self.pointer(b, where.base), math.gcd(self.multiples.of(where.base), where.lanes)

    def decided(self, cond: ir.Expr) -> bool | None:
        """True or False if a condition on indices certainly holds, or certainly fails, here; else None."""
        if isinstance(cond, ir.Binary) and cond.dtype.is_bool and cond.op in ("and", "or") and cond.lanes == 1:
            sides = self.decided(cond.a), self.decided(cond.b)
            short = cond.op == "or"
            return short if short in sides else None if None in sides else not short
        if not isinstance(cond, ir.Compare) or cond.a.dtype != i64 or cond.lanes != 1 or cond.op not in _ORDER:
            return None
        a, b = (cond.a, cond.b) if cond.op in ("lt", "le") else (cond.b, cond.a)
        strict = cond.op in ("lt", "gt")
        if self.facts.at_most(a + 1 if strict else a, b):
            return True
        return False if self.facts.at_most(b if strict else b + 1, a) else None

    def _var(self, e: ir.Var) -> _Text:
        return _Text(self.name(e), wide=e in self.wide or e not in self.indices)

    def _const(self, e: ir.Const) -> _Text:
        if e.lanes > 1:
            one = ir.Const(e.value, e.dtype)
            return _Text(f"tm_splat<{e.lanes}>({self._typed(one)})")
        code, wide = literal(e)
        return _Text(code, _UNARY if code.startswith("-") else _ATOM, wide)

    def _typed(self, e: ir.Expr) -> str:
        """A value in exactly its type, as a template takes it."""
        text = self.written(e)
        if (
            not e.dtype.is_int
            or e.lanes > 1
            or (e.dtype == i64 and text.wide)
            or (isinstance(e, (ir.Load, ir.Cast)) and e.dtype != i64)
        ):
            return text.code
        return f"({cuda_type(e.dtype)}){text.at(_UNARY)}"

    def _load(self, e: ir.Load) -> _Text:
        (where,) = e.indices
        b = e.buffer
        self.check_register(b, where)
        if e.lanes == 1:
            return _Text(f"{self.name(b)}[{self.within_address(where).code}]")
        if not isinstance(where, ir.Ramp) or constant_value(where.stride) != 1:
            return _Text(f"tm_gather({self.name(b)}, {self._vector_address(where)})")
        if b.scope in (ir.Scope.REGISTER, ir.Scope.LOCAL):
            return _Text(f"tm_get<{e.lanes}>({self.pointer(b, where.base)})")
        pointer, aligned = self.lanes_pointer(b, where)
        lanes = f"{e.lanes}" if aligned == e.lanes else f"{e.lanes}, {aligned}"
        return _Text(f"tm_load<{lanes}>({pointer})")

    def _vector_address(self, where: ir.Expr) -> str:
        return self.within_address(where).code

    def _unary(self, e: ir.Unary) -> _Text:
        a = self.written(e.a)
        if e.dtype.is_bool:
            return _Text(f"!{a.at(_UNARY)}", _UNARY)
        if e.op == "neg" and (e.dtype.is_float or self._unwrapped(e)):
            return _Text(f"-{a.at(_UNARY + 1)}", _UNARY, a.wide)
        return self._helper(e.op, e, self._typed(e.a))

    def _unwrapped(self, e: ir.Expr) -> bool:
        return e.dtype == i64 and (self._addressing or (e.lanes == 1 and self.is_index(e)))

    def _helper(self, name: str, e: ir.Expr, *args: str) -> _Text:
        exact = f"<{cuda_type(e.dtype)}>" if e.dtype.is_int and e.lanes == 1 else ""
        return _Text(f"tm_{name}{exact}({', '.join(args)})")

    def _binary(self, e: ir.Binary) -> _Text:
        if e.dtype.is_bool:
            for side, other in ((e.a, e.b), (e.b, e.a)):
                if e.op in ("and", "or") and self.decided(side) is (e.op == "and"):
                    return self.written(other)
            return self._infix(_OF_BOOLS[e.op], e)
        if e.op in ("min", "max") and self._unwrapped(e) and e.lanes == 1:
            return self._extremum(e)
        if e.op in _INFIX and (e.dtype.is_float or self._unwrapped(e)):
            return self._infix(_INFIX[e.op], e)
        if e.dtype.is_float:
            name = {"floordiv": "floor_div", "mod": "remainder"}.get(e.op, e.op)
            return self._helper(name, e, self.written(e.a).code, self.written(e.b).code)
        if e.op in ("tdiv", "tmod"):
            return self._infix(_INFIX[e.op], e)
        return self._helper(e.op, e, self._typed(e.a), self._typed(e.b))

    def _extremum(self, e: ir.Binary) -> _Text:
        for side, other in ((e.a, e.b), (e.b, e.a)):
            if self.facts.at_most(side, other) if e.op == "min" else self.facts.at_most(other, side):
                return self.written(side)
        a, b = self.written(e.a), self.written(e.b)
        wide = a.wide or b.wide
        return _Text(f"tm_{e.op}<{'long long' if wide else 'int'}>({a.code}, {b.code})", wide=wide)

    def _infix(self, operator: tuple[int, str], e: ir.Binary) -> _Text:
        level, sign = operator
        a, b = self.written(e.a), self.written(e.b)
        wide = a.wide or b.wide
        left = a.at(level)
        if e.dtype == i64 and e.lanes == 1 and not wide and not self.fits_int(e):
            left, wide = f"(long long){a.at(_UNARY)}", True
        right = b.at(level + 1)
        if level in (_BITS, _EQUAL):  # bracketed, because their precedence is easily misread
            left, right = (x.code if x.level >= _UNARY else f"({x.code})" for x in (a, b))
        elif level in (_AND, _OR):
            left, right = (
                x.code if x.level >= _EQUAL or o == sign else f"({x.code})" for x, o in ((a, _sign_of(e.a)), (b, ""))
            )
        if sign == "+" and b.level == _SUM and e.dtype == i64 and (a.wide or self._grows(e)):
            right = b.code  # a + (b + c): no partial sum is larger than the whole
        return _Text(f"{left} {sign} {right}", level, wide)

    def _grows(self, e: ir.Binary) -> bool:
        return self.fits_int(e) and self.bounds(e.a).lo >= 0 and self.bounds(e.b).lo >= 0

    def _compare(self, e: ir.Compare) -> _Text:
        level, sign = _COMPARISONS[e.op]
        a, b = self.written(e.a), self.written(e.b)
        return _Text(f"{a.at(_SUM)} {sign} {b.at(_SUM)}", level)

    def _select(self, e: ir.Select) -> _Text:
        if e.lanes > 1 and not isinstance(e.cond, ir.Broadcast):
            return _Text(f"tm_select({', '.join(self.written(x).code for x in (e.cond, e.a, e.b))})")
        cond = e.cond.a if isinstance(e.cond, ir.Broadcast) else e.cond
        known = self.decided(cond)
        if known is not None:
            return self.written(e.a if known else e.b)
        test = self.written(cond)
        with self.known(cond, stores=False):
            a = self.written(e.a)
        with self.known(cond, False, stores=False):
            b = self.written(e.b)
        wide = a.wide or b.wide
        if wide and e.dtype == i64:  # both in one type, for the reader: cond ? p[i] : 0LL
            a, b = _widened(e.a, a), _widened(e.b, b)
        return _Text(f"{test.at(_OR)} ? {a.at(_CHOICE + 1)} : {b.at(_CHOICE)}", _CHOICE, wide)

    def _cast(self, e: ir.Cast) -> _Text:
        if e.dtype == tf32 and e.a.dtype == f32:
            self.families.add("mma")
            return _Text(f"tm_round_tf32({self.written(e.a).code})")
        if e.a.dtype == tf32 and e.dtype == f32:
            return self.written(e.a)
        if e.a.dtype == i64 and e.lanes == 1:
            text = self.written(e.a)
            if not text.wide:  # already an int
                return text if e.dtype == i32 else _Text(f"tm_cast<{cuda_type(e.dtype)}>({text.code})")
        before, self._narrow = self._narrow, _factors(e.a) if e.dtype in _NARROW and e.a.dtype == f32 else ()
        code = self._typed(e.a)
        self._narrow = before
        return _Text(f"tm_cast<{cuda_type(e.dtype)}>({code})")

    def _call(self, e: ir.Call) -> _Text:
        if e.name == "checked_index":
            self.needs_error = True
            position, size = (self.within_address(a, addressing=False).code for a in e.args)
            return _Text(f"tm_checked_index({position}, {size}, error)")
        name = e.name
        if name in _APPROXIMATE and any(e is factor for factor in self._narrow):
            name = f"{name}_approx"
            self.families.add("approximate")
        return _Text(f"tm_{name}({', '.join(self.written(a).code for a in e.args)})")

    def _intrinsic(self, e: ir.Intrinsic) -> _Text:
        return _Text(self.invoked(e.instruction, e.args))

    def invoked(self, instruction: Instruction, operands: Sequence[ir.Region | ir.Expr | ir.TensorMap]) -> str:
        """The call of an instruction's device function: constants are template arguments, regions are pointers."""
        if instruction.targets.kind != "cuda":
            raise CodegenError(
                f"{instruction.name} cannot be written in CUDA C++", why=f"it is for {instruction.targets}."
            )
        if self.target is not None and not instruction.targets(self.target):
            raise CodegenError(
                f"{self.target} does not have {instruction.name}", why=f"it takes {instruction.targets}."
            )
        if instruction.family:
            self.families.add(instruction.family)
        constants, args = [], []
        for parameter, operand in zip(instruction.parameters, operands, strict=True):
            if parameter.place is Place.CONSTANT:
                assert isinstance(operand, ir.Expr)
                if constant_value(operand) is None:
                    raise CodegenError(f"{instruction.name} takes a {parameter.name} that is known when compiling")
                constants.append(self.written(operand).code)
            elif isinstance(operand, ir.Region):
                args.append(self.pointer(operand.buffer, operand.start[0]))
            elif isinstance(operand, ir.TensorMap):
                args.append(self.name(operand))
            elif parameter.place is Place.VALUE:
                args.append(self.within_address(operand, addressing=False).code)
            elif isinstance(operand, ir.Load):
                args.append(self.pointer(operand.buffer, operand.indices[0]))
            else:
                raise CodegenError(f"{instruction.name} takes {parameter}, not a value")
        if instruction.written is not None:
            name = f"@SYMBOL@_{instruction.name}"
            self.functions[name] = instruction
            return f"{name}({', '.join(args)})"
        exact = f"<{', '.join(constants)}>" if constants else ""
        return f"{instruction.text or 'tm_' + instruction.name}{exact}({', '.join(args)})"

    def _ramp(self, e: ir.Ramp) -> _Text:
        base, stride = self.within_address(e.base), self.within_address(e.stride)
        return _Text(f"tm_ramp<{e.lanes}, long long>({base.code}, {stride.code})")

    def _broadcast(self, e: ir.Broadcast) -> _Text:
        code = self._typed(e.a)
        if e.a.dtype == i64 and e.a in self.ranges and e.a not in self.wide and e.a not in self.indices:
            code = f"(long long){code}"  # a variable that is declared as int, because its value fits
        return _Text(f"tm_splat<{e.lanes}>({code})")

    def _lanereduce(self, e: ir.LaneReduce) -> _Text:
        op = {"sum": "or", "max": "or", "prod": "and", "min": "and"}.get(e.op, e.op) if e.dtype == boolean else e.op
        return _Text(f"tm_lanes_{op}({self.written(e.a).code})")


def _lasting(cond: ir.Expr, holds: bool) -> Iterator[ir.Expr]:
    """The parts of a condition that stay valid: parts that read memory do not, because it may be written."""
    if isinstance(cond, ir.Binary) and cond.op == "and" and cond.dtype.is_bool and holds:
        yield from _lasting(cond.a, holds)
        yield from _lasting(cond.b, holds)
    elif not any(isinstance(e, (ir.Load, ir.Intrinsic)) for e in walk_exprs(cond)):
        yield cond


def _widened(e: ir.Expr, text: _Text) -> _Text:
    """A constant as a ``long long``."""
    return _Text(f"{text.code}LL", text.level) if isinstance(e, ir.Const) and not text.wide else text


def _sign_of(e: ir.Expr) -> str:
    table = _OF_BOOLS if e.dtype.is_bool else _INFIX
    return table[e.op][1] if isinstance(e, ir.Binary) and e.op in table else ""


def literal(e: ir.Const) -> tuple[str, bool]:
    """A scalar constant, and whether its C++ type is wider than int."""
    if e.dtype.is_bool:
        return ("true" if e.value else "false"), False
    if e.dtype.is_float:
        return _float_literal(float(e.value), e.dtype), False
    value = int(e.value)
    if value == -(1 << 63):
        return LEAST_I64, True
    wide = not _INT.lo < value <= _INT.hi
    return f"{value}{'LL' if wide else ''}", wide


def _float_literal(value: float, dtype: DType) -> str:
    suffix = "" if dtype.name == "f64" else "f"
    if math.isfinite(value):
        code = f"{value!r}{suffix}"
        return code if dtype.bits >= 32 else f"{cuda_type(dtype)}({code})"
    code = "tm_nan()" if math.isnan(value) else f"{'-' if value < 0 else ''}tm_inf()"
    return code if dtype.name == "f32" else f"{cuda_type(dtype)}({code})"


def _factors(e: ir.Expr) -> tuple[ir.Expr, ...]:
    """The expressions of which ``e`` is the product."""
    return (*_factors(e.a), *_factors(e.b)) if isinstance(e, ir.Binary) and e.op == "mul" else (e,)
