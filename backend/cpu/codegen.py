"""C from a lowered kernel.

The text includes no header. Vector types and functions come from the prelude, which scans the text for the names that
it uses. Names are created here, numbered in order of appearance, so equal kernels have equal text, and no name from a
model reaches the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import cast as typed

from taskmap.backend.cpu.expressions import Expressions, c_type, mask_type, register_index
from taskmap.backend.cpu.interleaved_stores import interleaved
from taskmap.backend.cpu.native_functions import with_features
from taskmap.backend.cpu.prelude import prelude_parts
from taskmap.backend.cpu.team import PARALLEL
from taskmap.backend.cpu.tile_assembly import RegisterTile, assembly
from taskmap.backend.cpu.tile_reader import register_tile
from taskmap.backend.cpu.transposed_copies import SIDE, TransposedMatrix, transposed_copy
from taskmap.backend.store.key import KernelSource
from taskmap.ir import nodes as ir
from taskmap.ir.construct import constant_value, static_size
from taskmap.ir.errors import CodegenError
from taskmap.ir.isa.amx import TILES
from taskmap.ir.isa.entry import Instruction, Place
from taskmap.ir.types import i64
from taskmap.ir.visit import loads_in, walk_stmts

__all__ = ["generate"]

_NAME = re.compile(r"[a-zA-Z_]\w*")


def generate(
    kernel: ir.Kernel, vector_bytes: int = 64, features: Collection[str] = (), *, file: str = ""
) -> KernelSource:
    """The C function of a lowered kernel: pointers in the order of its buffers, its sizes, then ``int *error`` if any
    index is checked. The symbol is the kernel's name followed by a hash of the text. ``features``: CPU features whose
    functions it may use; instructions that its schedule chose need no mention. file: a comment names the line of this
    file from which a statement was made, where it changes.

    Raises CodegenError for a node that lowering should have removed.
    """
    emitter = _Emitter(kernel, vector_bytes, Expressions(vector_bytes=vector_bytes), file=file)
    text = with_features(emitter.function(), features)
    needed = prelude_parts(text, vector_bytes)
    note = kernel.note.replace("*/", "* /").replace("\n", " ")
    text = f"/* {note} */\n{text}" if note else text  # last, because words of a note are not names of the prelude
    stem = re.sub(r"[^a-zA-Z0-9_]", "_", kernel.name)[:40]
    digest = hashlib.sha256("\n".join([text, *needed]).encode()).hexdigest()[:16]
    symbol = f"tm_{stem}_{digest}"
    return KernelSource(symbol, text.replace("@SYMBOL@", symbol), needed, emitter.c.needs_error)


@dataclass(slots=True)
class _Emitter:
    kernel: ir.Kernel
    vector_bytes: int
    c: Expressions
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    registers: dict[ir.Buffer, dict[int, int]] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)
    """The C type of every name that a parallel loop may capture."""
    loops: list[str] = field(default_factory=list)
    tiles: dict[ir.Buffer, int] = field(default_factory=dict)
    """The numbers of the tile registers in use."""
    paired: int = 0
    """Vectors that are stored interleaved with later ones, so far."""
    functions: dict[str, str] = field(default_factory=dict)
    """The text of the functions that a user wrote, by name."""
    file: str = ""
    here: int = -1
    """The line of ``file`` that the current statement was made from."""
    named: int = -1
    """The one in the last comment."""
    free_tiles: list[int] = field(default_factory=lambda: list(range(TILES)))
    """The others; the one used longest ago comes first."""

    def function(self) -> str:
        outputs = set(self.kernel.outputs)
        for b in self.kernel.buffers:
            qualifier = "" if b in outputs else "const "
            self.declare(self.c.name(b, "p"), f"{qualifier}{c_type(b.dtype)} *restrict ")
        for d in self.kernel.dims:
            self.declare(self.c.name(d, "d"), "const i64 ")
        params = [kind + name for name, kind in self.declared.items()]
        self.declare("error", "int *")
        self.c.indices.update(self.kernel.dims)
        self.collect_registers(self.kernel.body)
        self.body(self.kernel.body)
        if self.c.needs_error:
            params.append("int *error")
        body = "\n".join(self.lines)
        before = "".join([*self.functions.values(), *self.loops])
        return f"{before}void @SYMBOL@({', '.join(params) or 'void'})\n{{\n{body}\n}}\n"

    def declare(self, name: str, kind: str) -> None:
        self.declared[name] = kind

    def line(self, text: str) -> None:
        line = "  " * self.depth + text
        if self.file and self.here != self.named:
            self.named = self.here
            line = f"{line}  /* {self.here} */"
        self.lines.append(line)

    def collect_registers(self, body: ir.Body) -> None:
        """The vector width of every element group of each register buffer, derived from its uses."""

        def use(b: ir.Buffer, where: ir.Expr, lanes: int) -> None:
            if b.scope is not ir.Scope.REGISTER:
                return
            start = register_index(b, where)
            known = self.registers.setdefault(b, {}).setdefault(start, lanes)
            if known != lanes:
                raise CodegenError(f"register {b.name}[{start}] is used with {known} and with {lanes} lanes")

        for s in walk_stmts(body):
            if isinstance(s, ir.Store):
                use(s.buffer, s.indices[0], s.indices[0].lanes)
        for e in loads_in(body):
            use(e.buffer, e.indices[0], e.lanes)

    def body(self, body: ir.Body) -> None:
        last = _last_uses(body)
        together = interleaved(body)
        early = {number for numbers in together.values() for number in numbers}
        done = 0
        for number, s in enumerate(body):
            if number < done:
                continue
            product = register_tile(body, number, self.vector_bytes)
            if product is not None:
                self.register_tile(product)
                done = product.end
            elif (square := transposed_copy(body, number, self.vector_bytes)) is not None:
                self.line(self.transposition(square))
                done = square.end
            elif number in early:
                self.early_store(typed(ir.Store, s))
            elif number in together:
                self.line(self.interleaved_store(typed(ir.Store, s), len(together[number])))
            else:
                self.stmt(s)
            for tile in [b for b, at in last.items() if at == number]:
                self.free_tiles.append(self.tiles.pop(tile))

    def register_tile(self, tile: RegisterTile) -> None:
        """A register tile, as assembly."""
        a, b, out = (f"{self.c.name(p.buffer)} + {self.c.address(p.base)}" for p in (tile.a, tile.b, tile.out))
        first = tile.loops[0]
        count = "" if isinstance(first, int) else self.c.address(first)
        ahead = f"{self.c.name(tile.ahead.buffer)} + {self.c.address(tile.ahead.base)}" if tile.ahead else ""
        for line in assembly(tile, self.vector_bytes, a, b, out, count, ahead):
            self.line(line)

    def transposition(self, square: TransposedMatrix) -> str:
        """The copy of a square of words."""
        size = 4 // square.written.dtype.bytes
        to = f"(u32 *)({self.c.name(square.written)} + {self.c.address(square.first)}), {square.step // size}"
        read, rows = square.read, self.c.address(square.rows)
        source = f"{self.c.name(read)} + {self.c.address(square.source)}, {read.dtype.bytes} * {rows}"
        return f"tm_transpose_u32x{SIDE}({to}, {source});"

    def early_store(self, s: ir.Store) -> None:
        """The value of an interleaved vector, stored with the last one."""
        t, name = c_type(s.buffer.dtype, s.value.lanes), f"pair_{self.paired}"
        self.line(f"const {t} {name} = {self.c.stored(s.value, s.buffer.dtype)};")
        self.paired += 1

    def interleaved_store(self, s: ir.Store, early: int) -> str:
        """The store of ``early`` interleaved vectors and of the last one, ``s``."""
        (where,) = s.indices
        assert isinstance(where, ir.Ramp)
        t, start = c_type(s.buffer.dtype, where.lanes), self.c.address(where.base)
        value = self.c.stored(s.value, s.buffer.dtype)
        values = ", ".join([*(f"pair_{self.paired - n}" for n in range(early, 0, -1)), value])
        verb = "store_pairs" if early == 1 else "store_fours"
        return f"tm_{verb}_{t}({self.c.name(s.buffer)} + {start} - {early}, {values});"

    def block(self, head: str, body: ir.Body) -> None:
        self.line(head + " {")
        self.depth += 1
        self.body(body)
        self.depth -= 1
        self.line("}")

    def stmt(self, s: ir.Stmt) -> None:
        source = getattr(s, "source", None)
        if source is not None and source.file == self.file:
            self.here = source.line
        if isinstance(s, ir.Store):
            self.line(self.store(s))
        elif isinstance(s, ir.Let):
            if s.value.dtype.is_bool and s.value.lanes > 1:
                self.c.masks[s.var] = self.c.mask_bits(s.value)
            if s.value.dtype == i64 and s.value.lanes == 1 and self.c.is_position(s.value):
                self.c.positions.add(s.var)
            kind = f"const {self.c.value_type(s.value)} "
            self.line(f"{kind}{self.c.name(s.var)} = {self.c.of(s.value)};")
            self.declare(self.c.name(s.var), kind)
        elif isinstance(s, ir.For):
            self.loop(s)
        elif isinstance(s, ir.If):
            self.block(f"if ({self.c.of(s.cond)})", s.then)
            if s.orelse:
                self.block("else", s.orelse)
        elif isinstance(s, ir.Allocate):
            self.allocate(s.buffer)
        elif isinstance(s, ir.Evaluate):
            self.line(f"(void){self.c.of(s.value)};")
        elif isinstance(s, ir.Invoke):
            self.line(f"{self.invocation(s)};")
        else:
            raise CodegenError(f"{type(s).__name__} cannot be written in C; a lowering pass should have removed it")

    def loop(self, s: ir.For) -> None:
        if s.kind is ir.LoopKind.VECTOR:
            raise CodegenError("a vector loop cannot be written in C; a lowering pass should have removed it")
        self.c.indices.add(s.var)
        v = self.c.name(s.var)
        if s.kind is ir.LoopKind.PARALLEL:
            self.parallel(s, v)
            return
        self.declare(v, "const i64 ")
        if s.unroll:
            self.line(f"#pragma GCC unroll {s.unroll}")
        self.block(f"for (i64 {v} = 0; {v} < {self.c.address(s.extent)}; {v}++)", s.body)

    def parallel(self, s: ir.For, v: str) -> None:
        """A loop whose ranges may run on any thread: a function of the captured variables, and one that unpacks them
        from a struct. Its pointers are parameters, because `restrict` takes effect there."""
        around, depth, declared = self.lines, self.depth, dict(self.declared)
        self.lines, self.depth, self.named = [], 1, -1
        self.block(f"for (i64 {v} = first; {v} < end; {v}++)", s.body)
        body = "\n".join(self.lines)
        self.lines, self.depth, self.named = around, depth, -1
        used = set(_NAME.findall(body))
        taken = {name: kind for name, kind in declared.items() if name in used}
        number = len(self.loops)
        loop = f"@SYMBOL@_loop{number}"
        params = ", ".join([*(kind + name for name, kind in taken.items()), "const i64 first", "const i64 end"])
        members = " ".join(f"{kind}{name};" for name, kind in taken.items())
        arguments = ", ".join([*(f"s->{name}" for name in taken), "first", "end"])
        self.loops.append(
            f"static __attribute__((noinline)) void {loop}({params})\n{{\n{body}\n}}\n"
            f"struct {loop}_data {{ {members} }};\n"
            f"static void {loop}_range(const void *data, i64 first, i64 end)\n"
            f"{{\n  const struct {loop}_data *s = data;\n  {loop}({arguments});\n}}\n"
        )
        self.line(f"const struct {loop}_data s{number} = {{{', '.join(taken)}}};")
        extent = self.c.address(s.extent)
        if s.shared is None:
            self.line(f"{PARALLEL}({loop}_range, &s{number}, {extent});")
            return
        self.line(f"if ({self.c.address(s.shared)}) {PARALLEL}({loop}_range, &s{number}, {extent});")
        self.line(f"else {loop}_range(&s{number}, 0, {extent});")

    def invocation(self, s: ir.Invoke) -> str:
        """An instruction on tile registers, or a user's function: tiles by number, memory as a pointer."""
        operands = {}
        for parameter, operand in zip(s.instruction.parameters, s.operands, strict=True):
            if not isinstance(operand, ir.Region):
                operands[parameter.name] = self.c.address(typed(ir.Expr, operand))
            elif operand.buffer.scope is ir.Scope.FRAGMENT:
                operands[parameter.name] = str(self.tiles[operand.buffer])
            else:
                operands[parameter.name] = f"{self.c.name(operand.buffer)} + {self.c.address(operand.start[0])}"
        if s.instruction.written is None:
            return s.instruction.text.format(**operands)
        name = f"@SYMBOL@_{s.instruction.name}"
        self.functions.setdefault(name, _function(name, s.instruction))
        return f"{name}({', '.join(operands.values())})"

    def allocate(self, b: ir.Buffer) -> None:
        if b.scope is ir.Scope.FRAGMENT:
            if not self.free_tiles:
                raise CodegenError(f"tile {b.name!r} has no register", why=f"all {TILES} are in use.")
            self.tiles[b] = self.free_tiles.pop(0)
            return
        name = self.c.name(b, "r" if b.scope is ir.Scope.REGISTER else "t")
        if b.scope is ir.Scope.REGISTER:
            for start, lanes in sorted(self.registers.get(b, {}).items()):
                kind = mask_type(32, lanes) if b.dtype.is_bool and lanes > 1 else c_type(b.dtype, lanes)
                self.line(f"{kind} {name}_{start};")
                self.declare(f"{name}_{start}", f"const {kind} ")
            return
        size = static_size(b.shape[0])
        if size is None:
            raise CodegenError(f"local buffer {b.name!r} has a size that is not known when compiling")
        self.line(f"{c_type(b.dtype)} {name}[{max(size, 1)}] __attribute__((aligned(64)));")
        self.declare(name, f"{c_type(b.dtype)} *restrict ")

    def store(self, s: ir.Store) -> str:
        (where,) = s.indices
        b = s.buffer
        lanes = where.lanes
        if b.scope is ir.Scope.REGISTER:
            value = self.c.as_mask(s.value, 32) if b.dtype.is_bool and lanes > 1 else self.c.of(s.value)
            return f"{self.c.name(b, 'r')}_{register_index(b, where)} = {value};"
        value = self.c.stored(s.value, b.dtype)
        if lanes == 1:
            return f"{self.c.name(b)}[{self.c.address(where)}] = {value};"
        t = c_type(b.dtype, lanes)
        if isinstance(where, ir.Ramp) and constant_value(where.stride) == 1:
            return f"tm_store_{t}({self.c.name(b)} + {self.c.address(where.base)}, {value});"
        if isinstance(where, ir.Ramp):
            base, step = self.c.address(where.base), self.c.address(where.stride)
            return f"tm_store_strided_{t}({self.c.name(b)} + {base}, {step}, {value});"
        return f"tm_scatter_{c_type(b.dtype)}_i64x{lanes}({self.c.name(b)}, {self.c.address(where)}, {value});"


def _function(name: str, instruction: Instruction) -> str:
    """The function of a micro-kernel: its own text, with its parameters around it."""
    assert instruction.written is not None
    params = []
    for p in instruction.parameters:
        const = "" if "w" in p.effect else "const "
        params.append(f"{const}i64 {p.name}" if p.place is Place.VALUE else f"{const}{c_type(p.dtypes[0])} *{p.name}")
    head = f"static inline __attribute__((always_inline)) void {name}({', '.join(params)})"
    return f"{head}\n{{\n{instruction.written.body}\n}}\n"


def _last_uses(body: ir.Body) -> dict[ir.Buffer, int]:
    """For each tile register allocated directly in ``body``, the number of the last statement that uses it."""
    own = {
        s.buffer: n for n, s in enumerate(body) if isinstance(s, ir.Allocate) and s.buffer.scope is ir.Scope.FRAGMENT
    }
    if own:
        for number, s in enumerate(body):
            for inner in walk_stmts(s):
                for r in inner.regions if isinstance(inner, ir.Invoke) else ():
                    if r.buffer in own:
                        own[r.buffer] = number
    return own
