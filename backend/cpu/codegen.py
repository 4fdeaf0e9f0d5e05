"""C from a lowered kernel.

The text includes no header. Vector types and functions come from the prelude, which finds in the text what the kernel
uses; a scalar is written as C's own arithmetic. Names are made here, numbered in order of appearance, so that equal
kernels have equal text, and no name from a model reaches it.

A vector predicate is a mask, an integer vector as wide as the elements it was compared from (m8 to m64 per lane); a
scalar predicate is an int.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field

from taskmap.backend.cpu.prelude import prelude_parts
from taskmap.backend.kernel_source import KernelSource
from taskmap.ir.construct import constant_dim, value_of
from taskmap.ir.errors import CodegenError
from taskmap.ir.nodes import (
    Allocate,
    Binary,
    Body,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Evaluate,
    Expr,
    For,
    If,
    Kernel,
    LaneReduce,
    Let,
    Load,
    LoopKind,
    Ramp,
    Scope,
    Select,
    Stmt,
    Store,
    Unary,
    Var,
)
from taskmap.ir.types import DType, compute_type, i64
from taskmap.ir.visit import walk_exprs, walk_stmts

_C_TYPES = {"bool": "b8"}
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "tdiv": "/", "tmod": "%",
}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FOLDS = {"sum": "hsum", "prod": "hprod", "max": "hmax", "min": "hmin", "or": "hor", "and": "hand"}


def c_type(dtype: DType, lanes: int = 1) -> str:
    """The name of a type in generated C: f32, i64, b8; f32x16 for a vector."""
    base = _C_TYPES.get(dtype.name, dtype.name)
    return base if lanes == 1 else f"{base}x{lanes}"


def generate(kernel: Kernel, vector_bytes: int = 64) -> KernelSource:
    """The C function of a lowered kernel: pointers in the order of its buffers, its sizes, then ``int *error`` if any index
    is checked. The symbol is the kernel's name followed by a hash of the text.

    Raises CodegenError for a node that lowering should have removed.
    """
    emitter = _Emitter(kernel)
    text = emitter.function()
    needed = prelude_parts(text, vector_bytes)
    stem = re.sub(r"[^a-zA-Z0-9_]", "_", kernel.name)[:40]
    digest = hashlib.sha256("\n".join([text, *needed]).encode()).hexdigest()[:16]
    symbol = f"tm_{stem}_{digest}"
    return KernelSource(symbol, text.replace("@SYMBOL@", symbol), needed, emitter.needs_error)


@dataclass(slots=True)
class _Emitter:
    kernel: Kernel
    names: dict[object, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    needs_error: bool = False
    counter: int = 0
    registers: dict[Buffer, dict[int, int]] = field(default_factory=dict)
    mask_vars: dict[Var, int] = field(default_factory=dict)

    def function(self) -> str:
        outputs = set(self.kernel.outputs)
        params: list[str] = []
        for b in self.kernel.buffers:
            qualifier = "" if b in outputs else "const "
            params.append(f"{qualifier}{c_type(b.dtype)} *restrict {self.name(b, 'p')}")
        params += [f"const i64 {self.name(d, 'd')}" for d in self.kernel.dims]
        self.collect_registers(self.kernel.body)
        self.body(self.kernel.body)
        if self.needs_error:
            params.append("int *error")
        note = self.kernel.note.replace("*/", "* /").replace("\n", " ")
        head = f"/* {note} */\n" if note else ""
        return f"{head}void @SYMBOL@({', '.join(params) or 'void'})\n{{\n" + "\n".join(self.lines) + "\n}\n"

    def name(self, key: Var | Buffer, prefix: str = "") -> str:
        known = self.names.get(key)
        if known is None:
            stem = re.sub(r"[^a-zA-Z0-9]", "", key.name)[:12]
            known = self.names[key] = f"{prefix}{stem}_{self.counter}"
            self.counter += 1
        return known

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def collect_registers(self, body: Body) -> None:
        """The vector width of every element group of each register buffer, from how it is used."""
        def use(b: Buffer, where: Expr, lanes: int) -> None:
            if b.scope is not Scope.REGISTER:
                return
            start = self.register_index(b, where)
            known = self.registers.setdefault(b, {}).setdefault(start, lanes)
            if known != lanes:
                raise CodegenError(f"register {b.name}[{start}] is used with {known} and with {lanes} lanes")

        for s in walk_stmts(body):
            if isinstance(s, Store):
                use(s.buffer, s.indices[0], s.indices[0].lanes)
        for e in walk_exprs(body):
            if isinstance(e, Load):
                use(e.buffer, e.indices[0], e.lanes)

    def register_index(self, b: Buffer, where: Expr) -> int:
        base = where.base if isinstance(where, Ramp) else where
        start = value_of(base)
        if start is None or (isinstance(where, Ramp) and value_of(where.stride) != 1):
            raise CodegenError(
                f"register buffer {b.name!r} is indexed by a value that is not known when compiling",
                hint="Unroll the loops that index it.",
            )
        return int(start)

    def body(self, body: Body) -> None:
        for s in body:
            self.stmt(s)

    def block(self, head: str, body: Body) -> None:
        self.line(head + " {")
        self.depth += 1
        self.body(body)
        self.depth -= 1
        self.line("}")

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Store):
            self.line(self.store(s))
        elif isinstance(s, Let):
            if s.value.dtype.is_bool and s.value.lanes > 1:
                self.mask_vars[s.var] = self.mask_bits(s.value)
            self.line(f"const {self.value_type(s.value)} {self.name(s.var)} = {self.expr(s.value)};")
        elif isinstance(s, For):
            self.loop(s)
        elif isinstance(s, If):
            self.block(f"if ({self.expr(s.cond)})", s.then)
            if s.orelse:
                self.block("else", s.orelse)
        elif isinstance(s, Allocate):
            self.allocate(s.buffer)
        elif isinstance(s, Evaluate):
            self.line(f"(void){self.expr(s.value)};")
        else:
            raise CodegenError(f"{type(s).__name__} cannot be written in C; a lowering pass should have removed it")

    def loop(self, s: For) -> None:
        if s.kind is LoopKind.PARALLEL:
            self.line("#pragma omp parallel for schedule(static)")
        elif s.unroll:
            self.line(f"#pragma GCC unroll {s.unroll}")
        v = self.name(s.var)
        self.block(f"for (i64 {v} = 0; {v} < {self.expr(s.extent)}; {v}++)", s.body)

    def allocate(self, b: Buffer) -> None:
        name = self.name(b, "r" if b.scope is Scope.REGISTER else "t")
        if b.scope is Scope.REGISTER:
            for start, lanes in sorted(self.registers.get(b, {}).items()):
                kind = _mask(32, lanes) if b.dtype.is_bool and lanes > 1 else c_type(b.dtype, lanes)
                self.line(f"{kind} {name}_{start};")
            return
        size = constant_dim(b.shape[0])
        if size is None:
            raise CodegenError(f"local buffer {b.name!r} has a size that is not known when compiling")
        self.line(f"{c_type(b.dtype)} {name}[{max(size, 1)}] __attribute__((aligned(64)));")

    def store(self, s: Store) -> str:
        (where,) = s.indices
        b = s.buffer
        lanes = where.lanes
        if b.scope is Scope.REGISTER:
            value = self.as_mask(s.value, 32) if b.dtype.is_bool and lanes > 1 else self.expr(s.value)
            return f"{self.name(b, 'r')}_{self.register_index(b, where)} = {value};"
        value = self.stored(s.value, b.dtype)
        if lanes == 1:
            return f"{self.name(b)}[{self.expr(where)}] = {value};"
        t = c_type(b.dtype, lanes)
        if isinstance(where, Ramp) and value_of(where.stride) == 1:
            return f"tm_store_{t}({self.name(b)} + {self.expr(where.base)}, {value});"
        return f"tm_scatter_{c_type(b.dtype)}_i64x{lanes}({self.name(b)}, {self.expr(where)}, {value});"

    def stored(self, value: Expr, dtype: DType) -> str:
        if not dtype.is_bool or value.lanes == 1:
            return self.expr(value)
        bits = self.mask_bits(value)
        return f"tm_mask_m{bits}x{value.lanes}_to_b8x{value.lanes}({self.expr(value)})"

    def value_type(self, e: Expr) -> str:
        if e.dtype.is_bool:
            return "int" if e.lanes == 1 else _mask(self.mask_bits(e), e.lanes)
        return c_type(e.dtype, e.lanes)

    def mask_bits(self, e: Expr) -> int:
        """The element width in bits of the mask that ``e`` evaluates to."""
        if isinstance(e, Compare):
            return compute_type(e.a.dtype).bits
        if isinstance(e, (Unary, Broadcast)):
            return self.mask_bits(e.a)
        if isinstance(e, Binary):
            return max(self.mask_bits(e.a), self.mask_bits(e.b))
        if isinstance(e, Select):
            return max(self.mask_bits(e.a), self.mask_bits(e.b))
        if isinstance(e, Cast):
            return self.mask_bits(e.a) if e.a.dtype.is_bool else compute_type(e.a.dtype).bits
        if isinstance(e, Call):
            return compute_type(e.args[0].dtype).bits
        if isinstance(e, Load) and e.buffer.scope is not Scope.REGISTER:
            return 8
        return self.mask_vars.get(e, 32) if isinstance(e, Var) else 32

    def as_mask(self, e: Expr, bits: int) -> str:
        have = self.mask_bits(e)
        code = self.expr(e)
        if have == bits:
            return code
        return f"tm_mask_m{have}x{e.lanes}_to_m{bits}x{e.lanes}({code})"

    def expr(self, e: Expr) -> str:
        if isinstance(e, Var):
            return self.name(e)
        if isinstance(e, Const):
            return _literal(e)
        method = getattr(self, f"_{type(e).__name__.lower()}", None)
        if method is None:
            raise CodegenError(f"{type(e).__name__} cannot be written in C; a lowering pass should have removed it")
        return str(method(e))

    def helper(self, name: str, e: Expr, *args: str) -> str:
        dtype = e.dtype
        return f"tm_{name}_{c_type(dtype)}x{e.lanes}({', '.join(args)})"

    def _load(self, e: Load) -> str:
        (where,) = e.indices
        b = e.buffer
        if b.scope is Scope.REGISTER:
            return f"{self.name(b, 'r')}_{self.register_index(b, where)}"
        if e.lanes == 1:
            return f"{self.name(b)}[{self.expr(where)}]"
        t = c_type(b.dtype, e.lanes)
        if isinstance(where, Ramp) and value_of(where.stride) == 1:
            code = f"tm_load_{t}({self.name(b)} + {self.expr(where.base)})"
        else:
            code = f"tm_gather_{c_type(b.dtype)}_i64x{e.lanes}({self.name(b)}, {self.expr(where)})"
        if not b.dtype.is_bool:
            return code
        return f"tm_mask_b8x{e.lanes}_to_m8x{e.lanes}({code})"

    def _unary(self, e: Unary) -> str:
        if e.op == "neg":
            return f"(-{self.expr(e.a)})"
        if e.op == "not":
            return f"(!{self.expr(e.a)})" if e.dtype.is_bool and e.lanes == 1 else f"(~{self.expr(e.a)})"
        return self.helper("abs", e, self.expr(e.a))

    def _binary(self, e: Binary) -> str:
        if e.dtype.is_bool and e.lanes > 1:
            bits = self.mask_bits(e)
            return f"({self.as_mask(e.a, bits)} {_INFIX[e.op]} {self.as_mask(e.b, bits)})"
        a, b = self.expr(e.a), self.expr(e.b)
        if e.op in _INFIX:
            return f"({a} {_INFIX[e.op]} {b})"
        names = {"floordiv": "floor_div", "mod": "remainder", "min": "min", "max": "max"}
        return self.helper(names[e.op], e, a, b)

    def _compare(self, e: Compare) -> str:
        if e.a.dtype.is_bool and e.lanes > 1:
            bits = max(self.mask_bits(e.a), self.mask_bits(e.b))
            return f"({self.as_mask(e.a, bits)} {_COMPARE[e.op]} {self.as_mask(e.b, bits)})"
        code = f"({self.expr(e.a)} {_COMPARE[e.op]} {self.expr(e.b)})"
        return code if e.lanes == 1 else f"(({_mask(compute_type(e.a.dtype).bits, e.lanes)}){code})"

    def _select(self, e: Select) -> str:
        if e.lanes == 1:
            return f"({self.expr(e.cond)} ? {self.expr(e.a)} : {self.expr(e.b)})"
        if e.dtype.is_bool:
            bits = self.mask_bits(e)
            cond, a, b = self.as_mask(e.cond, bits), self.as_mask(e.a, bits), self.as_mask(e.b, bits)
            return f"(({cond} & {a}) | (~{cond} & {b}))"
        cond = self.as_mask(e.cond, e.dtype.bits)
        return self.helper("select", e, cond, self.expr(e.a), self.expr(e.b))

    def _cast(self, e: Cast) -> str:
        source, dtype, lanes = e.a.dtype, e.dtype, e.lanes
        code = self.expr(e.a)
        if dtype.is_bool:
            zero = _splat("0", source, lanes)
            test = f"({code} != {zero})"
            return test if lanes == 1 else f"(({_mask(source.bits, lanes)}){test})"
        if source.is_bool:
            if lanes == 1:
                return f"(({c_type(dtype)})({code} != 0))"
            one, zero = _splat("1", dtype, lanes), _splat("0", dtype, lanes)
            return self.helper("select", e, self.as_mask(e.a, dtype.bits), one, zero)
        return f"tm_cast_{c_type(source)}x{lanes}_to_{c_type(dtype)}x{lanes}({code})"

    def _call(self, e: Call) -> str:
        if e.name == "checked_index":
            self.needs_error = True
            return _checked_index(e.lanes, *(self.expr(a) for a in e.args))
        args = ", ".join(self.expr(a) for a in e.args)
        return f"tm_{e.name}_{c_type(e.args[0].dtype)}x{e.lanes}({args})"

    def _ramp(self, e: Ramp) -> str:
        t = f"i64x{e.lanes}"
        return f"(tm_splat_{t}({self.expr(e.base)}) + tm_iota_{t}() * tm_splat_{t}({self.expr(e.stride)}))"

    def _broadcast(self, e: Broadcast) -> str:
        if e.dtype.is_bool:
            bits = self.mask_bits(e.a)
            return f"(({_mask(bits, e.lanes)})tm_splat_i{bits}x{e.lanes}(-(i{bits})({self.expr(e.a)} != 0)))"
        return _splat(self.expr(e.a), e.dtype, e.lanes)

    def _lanereduce(self, e: LaneReduce) -> str:
        name = _FOLDS[e.op]
        if e.a.dtype.is_bool:
            bits = self.mask_bits(e.a)
            return f"tm_{'any' if e.op == 'or' else 'all'}_m{bits}x{e.a.lanes}({self.expr(e.a)})"
        t = c_type(e.a.dtype, e.a.lanes)
        return f"tm_{name}_{t}({self.expr(e.a)})"


def _checked_index(lanes: int, position: str, size: str) -> str:
    """An index that may count from the end; out of range it sets the error flag and becomes 0."""
    check = "if (i < 0) i += n; if (i < 0 || i >= n) { *error = 1; i = 0; }"
    if lanes == 1:
        return f"({{ i64 i = {position}; const i64 n = {size}; {check} i; }})"
    v = f"i64x{lanes}"
    each = f"for (int l = 0; l < {lanes}; l++) {{ i64 i = at[l]; const i64 n = sizes[l]; {check} at[l] = i; }}"
    return f"({{ {v} at = {position}; const {v} sizes = {size}; {each} at; }})"


def _mask(bits: int, lanes: int) -> str:
    return f"m{bits}x{lanes}"


def _splat(code: str, dtype: DType, lanes: int) -> str:
    return f"(({c_type(dtype)}){code})" if lanes == 1 else f"tm_splat_{c_type(dtype, lanes)}({code})"


def _literal(e: Const) -> str:
    if e.dtype.is_bool:
        return "1" if e.value else "0"
    if not e.dtype.is_float:
        value = int(e.value)
        if value == -(1 << 63):
            return "(-9223372036854775807LL - 1)"
        suffix = "LL" if e.dtype == i64 else ""
        return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"
    value = float(e.value)
    suffix = "" if e.dtype.name == "f64" else "f"
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
    return f"({value!r}{suffix})" if value < 0 or math.copysign(1, value) < 0 else f"{value!r}{suffix}"
