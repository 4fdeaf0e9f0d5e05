"""Register tiles as inline assembly: the sums of a product, in one statement that a C compiler passes on unread.

    acc = 0;   for k:  acc += a[rows] @ b[columns];   out = acc        (or out += acc, or with sums that begin as out)

A tile is a few hundred vector instructions whose registers and order are known. gcc would take longer for them than
for the rest of a kernel, and it keeps a sum on the stack where this is not necessary. A tile here consists of vectors
of f32 on a CPU with fused multiply-adds; its operands are read from memory as they are, at distances that are known.
Any other tile is written in C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast as typed

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value, static_size
from taskmap.ir.isa.amx import PREFETCH
from taskmap.ir.types import f32
from taskmap.ir.visit import loads_in, walk_exprs

_DISTANCE = 1 << 31
_FEWEST = 6
"""Multiply-adds of a step, at least; a compiler may find a better form of a smaller loop."""
_WIDTHS = {16: "zmm", 8: "ymm", 4: "xmm"}


@dataclass(frozen=True, slots=True)
class Address:
    """An address: at first that of element ``base`` of ``buffer``. moves: the elements that it moves on at the end of
    each iteration, for each loop."""

    buffer: ir.Buffer
    base: ir.Expr
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A product in registers. Distances are in elements from the first row, column, or sum.

    loops: the extents, outermost first; only the first may be an expression. rows, columns: the distances of the
    elements of a, and of the vectors of b, that a step reads. sums: those of the vectors of ``out``, row by row. start,
    add: the sums begin as ``out``; they are added to it. end: the statement after the tile. ahead, lines: the first
    line that a step prefetches, and the distances of all.
    """

    loops: tuple[ir.Expr | int, ...]
    lanes: int
    a: Address
    b: Address
    out: Address
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    sums: tuple[int, ...]
    start: bool
    add: bool
    end: int
    ahead: Address | None = None
    lines: tuple[int, ...] = ()


def register_tile(body: ir.Body, number: int, vector_bytes: int) -> RegisterTile | None:
    """The tile whose sums statement ``number`` of ``body`` allocates; None if it has to be written in C."""
    first = body[number]
    if vector_bytes < 32 or not isinstance(first, ir.Allocate) or first.buffer.scope is not ir.Scope.REGISTER:
        return None
    try:
        tile = _Reader(body, first.buffer).tile(number + 1)
    except _OtherFormError:
        return None
    fits = _Registers.of(tile, vector_bytes) is not None
    return tile if fits and len(tile.sums) >= _FEWEST else None


class _OtherFormError(Exception):
    """The statements are not a tile of this form."""


def _require(condition: bool) -> None:
    if not condition:
        raise _OtherFormError


@dataclass(slots=True)
class _Reader:
    """Reads a tile, statement by statement."""

    body: ir.Body
    acc: ir.Buffer
    lanes: int = 0
    loops: list[ir.For] = field(default_factory=list)

    def tile(self, at: int) -> RegisterTile:
        _require(self.acc.dtype == f32)
        begun, at = self.begin(at)
        loop = self.body[at] if at < len(self.body) else None
        while isinstance(loop, ir.For):
            _require(loop.kind is ir.LoopKind.SERIAL and not loop.unroll and loop.shared is None)
            self.loops.append(loop)
            loop = loop.body[0] if len(loop.body) == 1 else None
        _require(bool(self.loops))
        extents = tuple(self.extent(d, loop) for d, loop in enumerate(self.loops))
        a, b, ahead = self.step(self.loops[-1].body)
        _require(len(a) * len(b) == len(begun))
        out, adds, end = self.end(at + 1, len(begun))
        start = self.started(begun, out)
        _require(not any(e.buffer is self.acc for e in loads_in(self.body[end:])))
        (a_place, rows), (b_place, columns), (out_place, sums) = (self.together(each) for each in (a, b, out))
        next_place, lines = self.together(ahead) if ahead else (None, ())
        return RegisterTile(
            extents, self.lanes, a_place, b_place, out_place, rows, columns, sums, start, adds, end,
            next_place, lines,
        )  # fmt: skip

    def extent(self, depth: int, loop: ir.For) -> ir.Expr | int:
        known = static_size(loop.extent)
        _require(depth == 0 if known is None else 0 < known < _DISTANCE)
        return loop.extent if known is None else known

    def begin(self, at: int) -> tuple[list[ir.Expr], int]:
        """The first values of all sums, and the number of the next statement."""
        values: list[ir.Expr] = []
        while at < len(self.body) and isinstance(s := self.body[at], ir.Store) and s.buffer is self.acc:
            (where,) = s.indices
            self.lanes = self.lanes or where.lanes
            _require(where.lanes == self.lanes and _vector(where) == len(values) * self.lanes)
            values.append(s.value)
            at += 1
        _require(bool(values) and self.lanes in _WIDTHS)
        return values, at

    def started(self, begun: Sequence[ir.Expr], out: Sequence[ir.Load]) -> bool:
        """True if the sums begin as the vectors of ``out``, false if as 0."""
        if all(isinstance(v, ir.Broadcast) and str(constant_value(v.a)) == "0.0" for v in begun):
            return False
        same = (
            isinstance(v, ir.Load) and v.buffer is o.buffer and v.indices == o.indices
            for v, o in zip(begun, out, strict=True)
        )
        _require(all(same))
        return True

    def step(self, body: ir.Body) -> tuple[list[ir.Load], list[ir.Load], list[ir.Load]]:
        """The loads of the elements of a and of the vectors of b in one step, whose sums come row by row; and the lines
        that it prefetches."""
        values: dict[ir.Var, ir.Expr] = {}
        registers: dict[tuple[ir.Buffer, int], ir.Expr] = {}
        products: list[tuple[int, tuple[ir.Buffer, int], tuple[ir.Buffer, int]]] = []
        ahead: list[ir.Load] = []
        for s in body:
            if isinstance(s, ir.Invoke) and s.instruction is PREFETCH:
                (line,) = s.regions
                ahead.append(ir.Load(line.buffer, line.start, line.buffer.dtype))
            elif isinstance(s, ir.Let):
                values[s.var] = _load(s.value)
            elif isinstance(s, ir.Store) and s.buffer is self.acc:
                products.append(self.product(s))
            elif isinstance(s, ir.Store) and s.buffer.scope is ir.Scope.REGISTER and not products:
                value = values.get(s.value, s.value) if isinstance(s.value, ir.Var) else s.value
                registers[s.buffer, _vector(s.indices[0])] = value
            else:
                _require(isinstance(s, ir.Allocate) and s.buffer.scope is ir.Scope.REGISTER)
        n = next((i for i, (_, left, _) in enumerate(products) if left != products[0][1]), len(products))
        _require(bool(products) and len(products) % n == 0)
        lefts, rights = [left for _, left, _ in products[::n]], [right for _, _, right in products[:n]]
        for number, product in enumerate(products):
            _require(product == (number * self.lanes, lefts[number // n], rights[number % n]))
        a, b = [_load(registers.get(r)) for r in lefts], [_load(registers.get(r)) for r in rights]
        _require(all(e.lanes == 1 for e in a) and all(e.lanes == self.lanes for e in b))
        return a, b, ahead

    def product(self, s: ir.Store) -> tuple[int, tuple[ir.Buffer, int], tuple[ir.Buffer, int]]:
        """The sum of a multiply-add, and the registers that it multiplies."""
        e = s.value
        _require(isinstance(e, ir.Intrinsic) and e.instruction.name == f"fma_f32x{self.lanes}")
        sum_, left, right = (_load(x) for x in typed(ir.Intrinsic, e).args)
        _require(sum_.buffer is self.acc and sum_.indices == s.indices)
        return _vector(s.indices[0]), (left.buffer, _vector(left.indices[0])), (right.buffer, _vector(right.indices[0]))

    def end(self, at: int, count: int) -> tuple[list[ir.Load], bool, int]:
        """The vectors of the result, true if the sums are added to them, and the number of the next statement."""
        places: list[ir.Load] = []
        added: set[bool] = set()
        for number, s in enumerate(self.body[at : at + count]):
            _require(isinstance(s, ir.Store))
            s = typed(ir.Store, s)
            place, value = ir.Load(s.buffer, s.indices, s.buffer.dtype, s.indices[0].lanes), s.value
            if isinstance(value, ir.Binary) and value.op == "add":
                before = _load(value.a)
                _require(before.buffer is s.buffer and before.indices == s.indices)
                value = value.b
                added.add(True)
            else:
                added.add(False)
            sum_ = _load(value)
            _require(sum_.buffer is self.acc and _vector(sum_.indices[0]) == number * self.lanes)
            places.append(place)
        _require(len(places) == count and len(added) == 1)
        return places, added == {True}, at + count

    def together(self, loads: Sequence[ir.Load]) -> tuple[Address, tuple[int, ...]]:
        """The first place, and the distances of all from it."""
        buffer = loads[0].buffer
        _require(buffer.dtype == f32 and buffer.scope not in (ir.Scope.REGISTER, ir.Scope.FRAGMENT))
        first: poly.Poly | None = None
        distances: list[int] = []
        for e in loads:
            (where,) = e.indices
            _require(e.buffer is buffer)
            if isinstance(where, ir.Ramp):
                _require(constant_value(where.stride) == 1)
                where = where.base
            place = poly.to_poly(where)
            first = place if first is None else first
            distance = poly.constant_value(poly.add(place, first, -1))
            _require(distance is not None and abs(distance) < _DISTANCE // 4)
            distances.append(typed(int, distance))
        assert first is not None
        around = [loop.var for loop in self.loops]
        steps = [poly.linear_coefficient(first, v) for v in around]
        _require(None not in steps)
        moves = self.moves(typed("list[int]", steps))
        base = {m: c for m, c in first.items() if not (len(m) == 1 and m[0] in around)}
        inside = [x for m in base for e in m for x in walk_exprs(e)]
        _require(not any(x in around or isinstance(x, ir.Call) for x in inside))
        return Address(buffer, poly.to_expr(base), moves), tuple(distances)

    def moves(self, steps: Sequence[int]) -> tuple[int, ...]:
        """The moves of an address to which each loop adds a multiple of its variable: the loop inside has moved it by
        all of its own steps."""
        extents = [typed(int, static_size(loop.extent)) for loop in self.loops[1:]]
        inside = [extent * step for extent, step in zip(extents, steps[1:], strict=True)]
        moves = tuple(step - before for step, before in zip(steps, (*inside, 0), strict=True))
        _require(all(abs(n) < _DISTANCE // 4 for n in moves))
        return moves


def _load(e: ir.Expr | None) -> ir.Load:
    _require(isinstance(e, ir.Load))
    return typed(ir.Load, e)


def _vector(where: ir.Expr) -> int:
    """The first register element of an index."""
    base = constant_value(where.base if isinstance(where, ir.Ramp) else where)
    _require(base is not None)
    return int(typed(int, base))


@dataclass(frozen=True, slots=True)
class _Registers:
    """The registers of a tile. broadcasts, loads: the elements of a, and the vectors of b, are operands in memory."""

    kind: str
    sums: tuple[int, ...]
    vectors: tuple[int, ...]
    left: int
    broadcasts: bool = False
    loads: bool = False

    @staticmethod
    def of(tile: RegisterTile, vector_bytes: int) -> _Registers | None:
        wide = vector_bytes == 64
        number = 32 if wide else 16
        rows, columns = len(tile.rows), len(tile.columns)
        loads, broadcasts = rows == 1, wide and columns == 1 and rows > 1
        vectors = 0 if loads else columns
        needed = rows * columns + vectors + (not broadcasts)
        if needed > number:
            return None
        sums = tuple(range(number - 1, number - 1 - rows * columns, -1))
        return _Registers(_WIDTHS[tile.lanes], sums, tuple(range(vectors)), vectors, broadcasts, loads)

    def name(self, number: int) -> str:
        return f"%%{self.kind}{number}"

    @property
    def used(self) -> list[int]:
        return sorted([*self.sums, *self.vectors, *([] if self.broadcasts else [self.left])])


def assembly(tile: RegisterTile, vector_bytes: int, a: str, b: str, out: str, count: str, ahead: str = "") -> list[str]:
    """The lines of a C block that computes a tile. a, b, out, ahead: pointers to the first elements; count: the first
    extent, which is used unless it is known."""
    registers = _Registers.of(tile, vector_bytes)
    assert registers is not None
    counts = [f"n{d}" for d in range(len(tile.loops))]
    known = [isinstance(n, int) for n in tile.loops]
    declared = [f"{name}{'' if k else f' = {count}'}" for name, k in zip(counts, known, strict=True)]
    operands = ['[a]"+&r"(a)', '[b]"+&r"(b)', *(['[p]"+&r"(p)'] if ahead else [])]
    operands += [f'[{name}]"{"=" if k else "+"}&r"({name})' for name, k in zip(counts, known, strict=True)]
    clobbered = ", ".join(f'"xmm{n}"' for n in registers.used)
    return [
        "{",
        f"  const f32 *a = {a}, *b = {b}{f', *p = {ahead}' if ahead else ''};",
        f"  f32 *out = {out};",
        f"  i64 {', '.join(declared)};",
        "  __asm__ volatile(",
        *(f'    "{line}\\n"' for line in _Writer(tile, registers).lines()),
        f'    : {", ".join(operands)} : [out]"r"(out) : "cc", "memory", {clobbered});',
        "}",
    ]


@dataclass(frozen=True, slots=True)
class _Writer:
    tile: RegisterTile
    registers: _Registers

    def lines(self) -> Iterator[str]:
        tile, r = self.tile, self.registers
        for number, distance in zip(r.sums, tile.sums, strict=True):
            yield self.begin(number, distance)
        if not isinstance(tile.loops[0], int):
            yield "testq %[n0], %[n0]"
            yield "jle .Ltile%=_end"
        yield from self.loop(0)
        yield ".Ltile%=_end:"
        yield from self.end()

    def begin(self, number: int, distance: int) -> str:
        name, first = self.registers.name(number), self.registers.name(self.registers.sums[0])
        if self.tile.start:
            return f"vmovups {4 * distance}(%[out]), {name}"
        if name != first:
            return f"vmovaps {first}, {name}"
        return (
            f"vxorps %%xmm{number}, %%xmm{number}, %%xmm{number}" if number < 16 else f"vpxord {name}, {name}, {name}"
        )

    def loop(self, depth: int) -> Iterator[str]:
        tile, extent = self.tile, self.tile.loops[depth]
        inner = depth + 1
        if isinstance(extent, int):
            yield f"movl ${extent}, %k[n{depth}]"
        if inner == len(tile.loops):
            yield ".p2align 6"
        yield f".Ltile%=_{depth}:"
        moves = {
            name: f"addq ${4 * address.moves[depth]}, %[{name}]"
            for name, address in (("a", tile.a), ("b", tile.b), ("p", tile.ahead))
            if address is not None and address.moves[depth]
        }
        if inner == len(tile.loops):
            yield from (f"prefetcht1 {4 * distance}(%[p])" for distance in tile.lines)
            yield from self.vectors()
            if "b" in moves and not self.registers.loads:
                yield moves.pop("b")  # early: the next step's loads wait for it
            yield from self.products()
        else:
            yield from self.loop(inner)
        yield from moves.values()
        yield f"decq %[n{depth}]"
        yield f"jne .Ltile%=_{depth}"

    def vectors(self) -> Iterator[str]:
        for number, distance in zip(self.registers.vectors, self.tile.columns, strict=False):
            yield f"vmovups {4 * distance}(%[b]), {self.registers.name(number)}"

    def products(self) -> Iterator[str]:
        tile, r = self.tile, self.registers
        rights = [f"{4 * d}(%[b])" for d in tile.columns] if r.loads else [r.name(n) for n in r.vectors]
        left = r.name(r.left)
        sums = iter(r.sums)
        for distance in tile.rows:
            element = f"{4 * distance}(%[a])"
            if r.broadcasts:
                yield f"vfmadd231ps {element}%{{1to{tile.lanes}%}}, {rights[0]}, {r.name(next(sums))}"
                continue
            yield f"vbroadcastss {element}, {left}"
            for right in rights:
                yield f"vfmadd231ps {right}, {left}, {r.name(next(sums))}"

    def end(self) -> Iterator[str]:
        tile, r = self.tile, self.registers
        for number, distance in zip(r.sums, tile.sums, strict=True):
            if tile.add:
                yield f"vaddps {4 * distance}(%[out]), {r.name(number)}, {r.name(number)}"
        for number, distance in zip(r.sums, tile.sums, strict=True):
            yield f"vmovups {r.name(number)}, {4 * distance}(%[out])"
