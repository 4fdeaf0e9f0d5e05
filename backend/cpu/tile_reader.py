"""The register tiles of a lowered kernel, found among its statements, for ``tile_assembly``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast as typed

from taskmap.backend.cpu.tile_assembly import Address, RegisterTile, TileProduct, fits, product_of
from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value, static_size
from taskmap.ir.isa.amx import PREFETCH
from taskmap.ir.types import f32, i8, i32, u8
from taskmap.ir.visit import loads_in, map_expr, walk_exprs

_DISTANCE = 1 << 31
_FEWEST = 6
"""Multiply-adds of a step, at least; a compiler may find a better form of a smaller loop."""
_LANES = (16, 8, 4)


def register_tile(body: ir.Body, number: int, vector_bytes: int) -> RegisterTile | None:
    """The tile whose sums statement ``number`` of ``body`` allocates; None if it has to be written in C."""
    first = body[number]
    if vector_bytes < 32 or not isinstance(first, ir.Allocate) or first.buffer.scope is not ir.Scope.REGISTER:
        return None
    try:
        tile = _Reader(body, first.buffer).tile(number + 1)
    except _OtherFormError:
        return None
    return tile if fits(tile, vector_bytes) and len(tile.sums) >= _FEWEST else None


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
    by: TileProduct | None = None
    loops: list[ir.For] = field(default_factory=list)

    def tile(self, at: int) -> RegisterTile:
        _require(self.acc.dtype in (f32, i32))
        begun, at = self.begin(at)
        loop = self.body[at] if at < len(self.body) else None
        while isinstance(loop, ir.For):
            _require(loop.kind is ir.LoopKind.SERIAL and not loop.unroll and loop.shared is None)
            self.loops.append(loop)
            loop = loop.body[0] if len(loop.body) == 1 else None
        _require(bool(self.loops))
        extents = tuple(self.extent(d, loop) for d, loop in enumerate(self.loops))
        (a, flipped), b, ahead = self.step(self.loops[-1].body)
        _require(len(a) * len(b) == len(begun))
        out, adds, end = self.end(at + 1, len(begun))
        start = self.started(begun, out)
        _require(not any(e.buffer is self.acc for e in loads_in(self.body[end:])))
        (a_place, rows), (b_place, columns), (out_place, sums) = (self.together(each) for each in (a, b, out))
        next_place, lines = self.together(ahead) if ahead else (None, ())
        _require(out_place.buffer.dtype == self.acc.dtype)
        by = typed(TileProduct, self.by)
        return RegisterTile(
            by, extents, self.lanes, a_place, b_place, out_place, rows, columns, sums, start, adds, end,
            flipped, next_place, lines,
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
        _require(bool(values) and self.lanes in _LANES)
        return values, at

    def started(self, begun: Sequence[ir.Expr], out: Sequence[ir.Load]) -> bool:
        """True if the sums begin as the vectors of ``out``, false if as 0."""
        if all(isinstance(v, ir.Broadcast) and str(constant_value(v.a)) in ("0", "0.0") for v in begun):
            return False
        same = (
            isinstance(v, ir.Load) and v.buffer is o.buffer and v.indices == o.indices
            for v, o in zip(begun, out, strict=True)
        )
        _require(all(same))
        return True

    def step(self, body: ir.Body) -> tuple[tuple[list[ir.Load], bool], list[ir.Load], list[ir.Load]]:
        """The loads of the elements of a, true if they are flipped, and those of the vectors of b in one step, whose
        sums come row by row; and the lines that it prefetches."""
        values: dict[ir.Var, ir.Expr] = {}
        registers: dict[tuple[ir.Buffer, int], ir.Expr] = {}
        products: list[tuple[int, tuple[ir.Buffer, int], tuple[ir.Buffer, int]]] = []
        ahead: list[ir.Load] = []

        def named(e: ir.Expr) -> ir.Expr | None:
            return values.get(e) if isinstance(e, ir.Var) else None

        for s in body:
            if isinstance(s, ir.Invoke) and s.instruction is PREFETCH:
                (line,) = s.regions
                ahead.append(ir.Load(line.buffer, line.start, line.buffer.dtype))
            elif isinstance(s, ir.Let):
                values[s.var] = s.value
            elif isinstance(s, ir.Store) and s.buffer is self.acc:
                products.append(self.product(s))
            elif isinstance(s, ir.Store) and s.buffer.scope is ir.Scope.REGISTER and not products:
                registers[s.buffer, _vector(s.indices[0])] = map_expr(
                    s.value, lambda e: values.get(e) if isinstance(e, ir.Var) else None
                )
            else:
                _require(isinstance(s, ir.Allocate) and s.buffer.scope is ir.Scope.REGISTER)
        n = next((i for i, (_, left, _) in enumerate(products) if left != products[0][1]), len(products))
        _require(bool(products) and len(products) % n == 0)
        lefts, rights = [left for _, left, _ in products[::n]], [right for _, _, right in products[:n]]
        for number, product in enumerate(products):
            _require(product == (number * self.lanes, lefts[number // n], rights[number % n]))
        flips = {_is_flipped(registers.get(r)) for r in lefts}
        _require(len(flips) == 1)
        a = [_load(_unflipped(registers.get(r))) for r in lefts]
        b = [_load(registers.get(r)) for r in rights]
        by = typed(TileProduct, self.by)
        _require(all(e.lanes == by.group for e in a) and all(e.lanes == self.lanes * by.group for e in b))
        _require(all(e.dtype.bytes == by.element_bytes for e in (*a, *b)))
        return (a, True in flips), b, ahead

    def product(self, s: ir.Store) -> tuple[int, tuple[ir.Buffer, int], tuple[ir.Buffer, int]]:
        """The sum of a multiply-add, and the registers that it multiplies."""
        e = s.value
        _require(isinstance(e, ir.Intrinsic))
        by = product_of(typed(ir.Intrinsic, e).instruction, self.lanes)
        _require(by is not None and self.by in (None, by) and s.buffer.dtype == by.sums)
        self.by = by
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
        _require(buffer.scope not in (ir.Scope.REGISTER, ir.Scope.FRAGMENT))
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


def _is_flipped(e: ir.Expr | None) -> bool:
    """True for a signed byte whose highest bit is flipped, which makes it unsigned."""
    return isinstance(e, ir.Cast) and e.dtype == u8 and e.a.dtype == i8


def _unflipped(e: ir.Expr | None) -> ir.Expr | None:
    if not _is_flipped(e):
        return e
    flip = typed(ir.Cast, e).a
    _require(isinstance(flip, ir.Binary) and flip.op == "xor")
    shift = typed(ir.Binary, flip).b
    _require(constant_value(shift.a if isinstance(shift, ir.Broadcast) else shift) in (128, -128))
    return typed(ir.Binary, flip).a


def _vector(where: ir.Expr) -> int:
    """The first register element of an index."""
    base = constant_value(where.base if isinstance(where, ir.Ramp) else where)
    _require(base is not None)
    return int(typed(int, base))
