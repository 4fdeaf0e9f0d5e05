"""Specs across GPU threads become loops of instructions.

Move with a mapping        each worker copies its chunks, with one vector access each or with cp.async
Move of register tiles     ldmatrix or stmatrix if the tile is held the way they hold it, else vectors of elements that
                           a thread holds contiguously; of opaque fragments, their own loads and stores
MatMul into register tiles a tensor instruction, if it holds its result the way the tile is held: the operands'
                           fragments are loaded from shared memory once per k-step; else one multiply-add per element
                           that a thread holds

Specs local to one thread are left to LowerSpecs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taskmap.ir import nodes as ir
from taskmap.ir.algebra import radix
from taskmap.ir.algebra.digits import DigitMap
from taskmap.ir.algebra.fragments import Fragment, fragment, long_dims, matrices
from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.algebra.quotient import along, quotient
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_index, call, cast, constant_value, index, static_size
from taskmap.ir.errors import LoweringError
from taskmap.ir.isa.entry import Instruction, Place
from taskmap.ir.isa.specs import AsyncCopySpec, MatMulSpec, MatrixMoveSpec
from taskmap.ir.isa.table import INSTRUCTIONS
from taskmap.ir.lower.clip import clipped_source, clipped_vector
from taskmap.ir.lower.conditions import NO_SHARED_SPECS, KernelPass
from taskmap.ir.lower.instructions import torn
from taskmap.ir.lower.opaque import opaque_move
from taskmap.ir.select.tiles import WARP, Tile, choose_tiles
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import DType, f32, f64
from taskmap.ir.visit import map_body
from taskmap.ir.workers import THREAD

_WIDEST = 16
"""The largest load or store of one thread, in bytes."""
_AT_LEAST = 4
"""Neighbours that a thread moves from one address on, by several instructions if they have more than 16 bytes."""


@dataclass(frozen=True, slots=True)
class LowerGpuSpecs(KernelPass):
    """Move and MatMul carried out by several threads together become instructions of the target."""

    target: GpuTarget
    table: tuple[Instruction, ...] = INSTRUCTIONS
    name = "lower-gpu-specs"
    before = "specs assign their work to threads by a mapping, or by the owners of register tiles"
    after = "the remaining specs are local to each thread"
    why_here = "before registers are distributed and addresses replace indices, because regions are given in indices"
    ensures = (NO_SHARED_SPECS,)

    def run(self, kernel: ir.Kernel) -> ir.Kernel:
        """The same kernel. Raises LoweringError for specs that no instruction, and no loop of threads, implements."""
        if kernel.launch is None:
            return kernel
        lowering = _Lowering(self.target, self.table, kernel.launch.threads)
        body = map_body(kernel.body, lowering.stmt)
        return kernel if body is kernel.body else replace(kernel, body=body)


@dataclass(frozen=True, slots=True)
class _Lowering:
    target: GpuTarget
    table: tuple[Instruction, ...]
    threads: int

    def stmt(self, s: ir.Stmt) -> ir.Body | None:
        if isinstance(s, ir.Move):
            if s.mapping is not None:
                return self.divided(s, s.mapping)
            if _owner(s.dst) is not None or _owner(s.src) is not None:
                return self.distributed(s)
            return self.local(s)
        if isinstance(s, ir.MatMul) and _owner(s.c) is not None:
            return self.product(s)
        return None

    def worker(self, count: int, size: int = 1) -> ir.Expr:
        """The number of this thread's group of ``size`` threads, among the ``count`` of a mapping."""
        group = THREAD if size == 1 else THREAD // size
        return group if count * size >= self.threads else group % count

    # Copies

    def divided(self, s: ir.Move, mapping: TaskMapping) -> ir.Body:
        """A copy in which each task of the mapping is a chunk of the regions."""
        b = Builder(s.source)
        shape = _shape(s.dst)
        long = [d for d, n in enumerate(shape) if n != 1]
        tasks = mapping.task_shape
        if len(tasks) != len(long) or any(shape[d] % t for d, t in zip(long, tasks, strict=False)):
            raise LoweringError(
                f"{mapping} cannot divide a copy of {list(shape)}",
                where=s.source,
                why=f"its {list(tasks)} tasks are not whole chunks of it.",
            )
        chunk = {d: shape[d] // t for d, t in zip(long, tasks, strict=True)}
        worker = as_index(s.worker) if s.worker is not None else self.worker(mapping.num_workers)
        with b.mapped([f"i{d}" for d in range(len(tasks))], mapping, worker) as at:
            starts = {d: i * chunk[d] for d, i in zip(long, at, strict=True)}
            outer = long[:-1]
            with b.grid([f"e{d}" for d in outer], [chunk[d] for d in outer], ir.LoopKind.UNROLLED) as inner:
                for d, i in zip(outer, inner, strict=True):
                    starts[d] = starts[d] + i
                last = chunk[long[-1]] if long else 1
                self.chunk(b, s, starts, long, last)
        return b.body()

    def chunk(self, b: Builder, s: ir.Move, starts: dict[int, ir.Expr], long: Sequence[int], count: int) -> None:
        """Copy ``count`` neighbours along the last long dimension."""
        size = s.dst.buffer.dtype.bytes
        if s.asynchronous and self.target.capability >= 80:
            instruction = self.async_copy(s, count * size)
            extents = [count if long and d == long[-1] else 1 for d in range(len(s.dst.shape))]
            to, source = _part(s.dst, starts, extents), _part_like(s.src, s.dst, starts, count, long)
            if s.clipped:
                b.invoke(instruction, to, *clipped_source(source, count * size, s.exact))
            else:
                b.invoke(instruction, to, source)
            return
        step = min(count, max(1, _WIDEST // max(size, s.src.buffer.dtype.bytes)))
        step &= -step
        while count % step:
            step //= 2
        with b.loop("v", count // step, ir.LoopKind.UNROLLED) as v:
            at = dict(starts)
            if long:
                at[long[-1]] = at[long[-1]] + v * step
            self.vector(b, s, at, long[-1] if long else None, step)

    def vector(
        self, b: Builder, s: ir.Move, starts: dict[int, ir.Expr], dim: int | None, lanes: int,
        kind: ir.LoopKind = ir.LoopKind.VECTOR,
    ) -> None:  # fmt: skip
        """``lanes`` neighbours along a dimension of the destination, the first one at ``starts``."""

        def at(lane: ir.Expr) -> tuple[list[ir.Expr], list[ir.Expr]]:
            moved = starts if dim is None else {**starts, dim: starts[dim] + lane}
            here = [start + moved.get(d, index(0)) for d, start in enumerate(s.dst.start)]
            return here, [start + o for start, o in zip(s.src.start, _spread(s.src, s.dst, moved), strict=True)]

        def whole() -> None:
            with b.loop("l", lanes, kind) as lane:
                here, there = at(lane)
                b.store(s.dst.buffer, here, cast(s.src.buffer[tuple(there)], s.dst.buffer.dtype))

        if s.clipped:
            clipped_vector(b, s, lanes, at, whole)
        else:
            whole()

    def async_copy(self, s: ir.Move, bytes: int) -> Instruction:
        places = s.dst.buffer.scope, s.src.buffer.scope
        if places != (ir.Scope.SHARED, ir.Scope.GLOBAL) or s.dst.buffer.dtype != s.src.buffer.dtype:
            raise LoweringError(
                f"{s.src.buffer!r} cannot be copied to {s.dst.buffer!r} asynchronously",
                where=s.source,
                why="cp.async copies from global to shared memory, and converts nothing.",
            )
        for i in self.table:
            if i.spec == AsyncCopySpec(bytes, s.clipped) and i.targets(self.target):
                return i
        raise LoweringError(
            f"chunks of {bytes} bytes cannot be copied asynchronously",
            where=s.source,
            why=f"{self.target} copies 4, 8 or 16 bytes at once.",
            hint="Choose a mapping whose tasks are 16 bytes.",
        )

    def distributed(self, s: ir.Move) -> ir.Body:
        """Each thread moves the elements that it holds."""
        held = s.dst if _owner(s.dst) is not None else s.src
        owner = _owner(held)
        assert owner is not None
        if held.buffer.scope is ir.Scope.FRAGMENT:
            return opaque_move(s, held, owner, self.table, self.target, self.threads)
        if _owner(s.dst) is None or _owner(s.src) is None:
            by_matrices = self.matrices(s, held, owner)
            if by_matrices is not None:
                return by_matrices
        whole = _shape(held) == owner.task_shape and all(static_size(x) == 0 for x in held.start)
        if not whole:
            raise LoweringError(
                f"a part of {held.buffer!r} cannot be moved",
                where=s.source,
                why="the owner of each element is known only for the whole tile.",
                hint="Move the whole tile, or loop over owner.on(thread).",
            )
        b = Builder(s.source)
        lanes, along, outer, kind = self.neighbours(s, held, owner)
        names = [f"i{d}" for d in range(len(owner.task_shape))]
        with b.mapped(names, outer, self.worker(owner.num_workers)) as at:
            offsets: dict[int, ir.Expr] = {d: i * lanes if d == along else i for d, i in enumerate(at)}
            if held is not s.dst:
                places = _renamed(held, s.dst, {d: index(d) for d in offsets})
                along = next((d for d, was in places.items() if was == index(along)), -1)
                offsets = _renamed(held, s.dst, offsets)
            self.vector(b, s, offsets, along if along in offsets else None, lanes, kind)
        return b.body()

    def neighbours(self, s: ir.Move, held: ir.Region, owner: TaskMapping) -> tuple[int, int, TaskMapping, ir.LoopKind]:
        """The number of elements contiguous both in a thread and in memory, the dimension along which they are, the
        owner of such vectors, and the kind of the loop over one. If there are none, elements contiguous in a thread
        alone are moved one by one, from one address on."""
        other = s.src if held is s.dst else s.dst
        size = max(s.dst.buffer.dtype.bytes, s.src.buffer.dtype.bytes)
        last = len(owner.task_shape) - 1
        there = _renamed(held, other, {d: index(d) for d in range(last + 1)})
        found = {int(constant_value(d) or 0): t for t, d in there.items() if static_size(other.shape[t]) != 1}
        by, alone = _owner(other), (1, last, owner, ir.LoopKind.UNROLLED)
        lanes = _WIDEST // size if s.clipped else max(_WIDEST // size, _AT_LEAST)
        while lanes > 1:
            for dim in sorted(found, reverse=True):
                vector = repeat(*(lanes if d == dim else 1 for d in range(last + 1)))
                outer = quotient(owner, vector)
                if outer is None or (by is not None and not quotient(by, vector)):
                    continue
                if by is not None or not torn(other, found[dim], lanes):
                    return lanes, dim, outer, ir.LoopKind.VECTOR
                alone = (lanes, dim, outer, ir.LoopKind.UNROLLED) if alone[0] == 1 and not s.clipped else alone
            lanes //= 2
        return alone

    def matrices(self, s: ir.Move, held: ir.Region, owner: TaskMapping) -> ir.Body | None:
        """ldmatrix or stmatrix, one tile of matrices after another; None if they do not apply. No loop: addresses that
        differ by constants are computed once."""
        other = s.src if held is s.dst else s.dst
        if other.buffer.scope is not ir.Scope.SHARED or other.buffer.dtype != held.buffer.dtype:
            return None
        if owner.num_workers % WARP:
            return None
        store = held is s.src
        found = self.matrix_move(held, owner, other, store)
        if found is None:
            return None
        instruction, shape = found
        tiles = _tiles_of(owner, shape)
        if tiles is None:
            return None
        b = Builder(s.source)
        worker = self.worker(tiles.num_workers, WARP)
        for slot in range(tiles.num_slots):
            at = _task(tiles, worker, index(slot))
            offsets = {d: i * n for d, (i, n) in enumerate(zip(at, shape, strict=True))}
            mine = _part(held, offsets, shape)
            memory = _part(other, _renamed(held, other, offsets), _extents_like(other, held, shape))
            b.invoke(instruction, *((memory, mine) if store else (mine, memory)))
        return b.body()

    def matrix_move(
        self, held: ir.Region, owner: TaskMapping, memory: ir.Region, store: bool
    ) -> tuple[Instruction, tuple[int, ...]] | None:
        """The instruction that moves the most matrices of a register tile at once, and the tile that it moves."""
        size = held.buffer.dtype.bytes
        specs = [i for i in self.table if isinstance(i.spec, MatrixMoveSpec) and i.targets(self.target)]
        fitting = [i for i in specs if i.spec.bytes == size and i.spec.store == store]  # type: ignore[union-attr]
        for instruction in sorted(fitting, key=lambda i: -i.spec.count):  # type: ignore[union-attr]
            shape = self.matrix_tile(instruction, held, owner, memory)
            if shape is not None:
                return instruction, shape
        return None

    def matrix_tile(
        self, instruction: Instruction, held: ir.Region, owner: TaskMapping, memory: ir.Region
    ) -> tuple[int, ...] | None:
        spec = instruction.spec
        assert isinstance(spec, MatrixMoveSpec)
        expected = next(p.owner for p in instruction.parameters if p.place is Place.REGISTERS)
        assert expected is not None
        for shape in _tile_shapes(_shape(held), spec.count, spec.columns):
            tile = fragment(owner, shape, WARP)
            found = matrices(tile, expected, spec.count) if isinstance(tile, Fragment) else None
            if found is None:
                continue
            dims = dict(zip(long_dims(_shape(held)), long_dims(_shape(memory)), strict=True))
            if found.along in dims and not torn(memory, dims[found.along], spec.columns, 16 // held.buffer.dtype.bytes):
                return shape
        return None

    def local(self, s: ir.Move) -> ir.Body | None:
        """A thread's own copy between registers and memory, in vectors along a dimension contiguous in both; None if
        there is none."""
        if {s.dst.buffer.scope, s.src.buffer.scope} <= {ir.Scope.REGISTER} or not _sizes_known(s.dst):
            return None
        places = _renamed(s.dst, s.src, {d: index(d) for d in range(len(s.dst.shape))})
        for there, here in ((t, int(constant_value(d) or 0)) for t, d in places.items()):
            size = max(s.dst.buffer.dtype.bytes, s.src.buffer.dtype.bytes)
            lanes = math.gcd(_shape(s.dst)[here], _WIDEST // size)
            if lanes > 1 and not torn(s.dst, here, lanes) and not torn(s.src, there, lanes):
                counts = {d: n // lanes if d == here else n for d, n in enumerate(_shape(s.dst)) if n != 1}
                b = Builder(s.source)
                with b.grid([f"m{d}" for d in counts], list(counts.values()), ir.LoopKind.UNROLLED) as at:
                    starts = {d: i * lanes if d == here else i for d, i in zip(counts, at, strict=True)}
                    self.vector(b, s, starts, here, lanes)
                return b.body()
        return None

    # Products

    def product(self, s: ir.MatMul) -> ir.Body:
        """c in the registers of several threads."""
        owner = _owner(s.c)
        assert owner is not None
        if _shape(s.c) != owner.task_shape or any(static_size(x) != 0 for x in s.c.start):
            raise LoweringError(
                f"a product cannot be added to a part of {s.c.buffer!r}",
                where=s.source,
                why="the owner of each element is known only for the whole tile.",
            )
        reasons: tuple[str, ...] = ()
        k = static_size(s.a.shape[-1])
        if k is not None:
            m, n = _shape(s.c)[-2:]
            c, a, b = _tile(s.c, _shape(s.c)), _tile(s.a, (m, k)), _tile(s.b, (k, n))
            choice = choose_tiles(c, a, b, self.target, self.table)
            reasons = choice.reasons
            if choice.by is not None:
                return self.by_warps(s, choice.by)
        if _owner(s.a) is not None or _owner(s.b) is not None:
            raise LoweringError(
                f"no instruction multiplies {s.a.buffer!r} by {s.b.buffer!r} into {s.c.buffer!r}",
                where=s.source,
                why="\n".join(reasons) or "their sizes do not fit.",
                hint="Hold the tiles as the instruction's owners say, or put the operands into shared memory.",
            )
        return self.one_by_one(s, owner)

    def one_by_one(self, s: ir.MatMul, owner: TaskMapping) -> ir.Body:
        """Every thread accumulates the elements that it holds, without a tensor instruction."""
        b = Builder(s.source)
        dtype = s.c.buffer.dtype
        with b.loop("k", as_index(s.a.shape[-1])) as k:
            names = [f"i{d}" for d in range(len(owner.task_shape))]
            with b.mapped(names, owner, self.worker(owner.num_workers)) as at:
                i, j = at[-2:]
                x, y = (r.buffer[_at(r, o, p)] for r, o, p in ((s.a, i, k), (s.b, k, j)))
                b.store(s.c.buffer, at, _multiply_add(cast(x, dtype), cast(y, dtype), s.c.buffer[tuple(at)]))
        return b.body()

    def by_warps(self, s: ir.MatMul, instruction: Instruction) -> ir.Body:
        """Tiles of c by the warp-level instruction that was chosen for them."""
        spec, owner = instruction.spec, _owner(s.c)
        assert isinstance(spec, MatMulSpec)
        assert owner is not None
        assert instruction.owner_c is not None
        k = static_size(s.a.shape[-1])
        tiles = quotient(owner, instruction.owner_c)
        assert k is not None
        assert tiles is not None
        rows, columns = along(tiles, 0), along(tiles, 1)
        assert rows is not None
        assert columns is not None
        b = Builder(s.source)
        warp = b.let("warp", self.worker(tiles.num_workers, WARP))
        left = _Operand(s.a, spec.a, (spec.m, spec.k), instruction.owner_a, rows, 0)
        right = _Operand(s.b, spec.b, (spec.k, spec.n), instruction.owner_b, columns, 1)
        in_registers = _owner(s.a) is not None or _owner(s.b) is not None
        with b.loop(
            "k", k // spec.k, ir.LoopKind.UNROLLED if in_registers or k // spec.k <= 4 else ir.LoopKind.SERIAL
        ) as step:
            fragments = [self.fragments(b, operand, warp, step) for operand in (left, right)]
            with (
                b.loop("m", rows.num_slots, ir.LoopKind.UNROLLED) as i,
                b.loop("n", columns.num_slots, ir.LoopKind.UNROLLED) as j,
            ):
                row, column = _task(rows, warp, i)[0] * spec.m, _task(columns, warp, j)[1] * spec.n
                b.invoke(
                    instruction, region(s.c.buffer, (row, column), (spec.m, spec.n)), fragments[0](i), fragments[1](j)
                )
        return b.body()

    def fragments(self, b: Builder, operand: _Operand, warp: ir.Expr, step: ir.Expr) -> Callable[[ir.Expr], ir.Region]:
        """The fragments of an operand for one k-step: emits their loads, and returns their regions by slot."""
        r, shape = operand.region, operand.shape
        k_dim = 1 - operand.dim
        if _owner(r) is not None:

            def held(slot: ir.Expr) -> ir.Region:
                at = [index(0), index(0)]
                at[operand.dim] = _task(operand.tiles, warp, slot)[operand.dim] * shape[operand.dim]
                at[k_dim] = step * shape[k_dim]
                return region(r.buffer, [x + o for x, o in zip(r.start, at, strict=True)], shape)

            return held
        count = operand.tiles.num_slots
        tiles = repeat(count, 1) if operand.dim == 0 else repeat(1, count)
        assert operand.owner is not None
        owner = tiles * operand.owner
        buffer = b.allocate("fragment", operand.dtype, owner.task_shape, ir.Scope.REGISTER, owner=owner)
        self.load_fragments(b, operand, buffer, owner, warp, step)

        def loaded(slot: ir.Expr) -> ir.Region:
            at = [index(0), index(0)]
            at[operand.dim] = slot * shape[operand.dim]
            return region(buffer, at, shape)

        return loaded

    def load_fragments(
        self, b: Builder, operand: _Operand, buffer: ir.Buffer, owner: TaskMapping, warp: ir.Expr, step: ir.Expr
    ) -> None:
        r, shape, dim = operand.region, operand.shape, operand.dim
        whole = region(buffer, (0, 0), buffer.shape)
        matrix = None
        if r.buffer.scope is ir.Scope.SHARED and r.buffer.dtype == operand.dtype:
            matrix = self.matrix_move(whole, owner, _two_dims(r), store=False)
        per = matrix[1][dim] // shape[dim] if matrix is not None else 1
        if matrix is not None and (per == 0 or matrix[1][1 - dim] != shape[1 - dim] or not operand.neighbours(per)):
            matrix, per = self.single(operand, buffer, owner), 1
        with b.loop("t", operand.tiles.num_slots // per, ir.LoopKind.UNROLLED) as t:
            slot = t * per
            at = [index(0), index(0)]
            at[dim] = _task(operand.tiles, warp, slot)[dim] * shape[dim]
            at[1 - dim] = step * shape[1 - dim]
            here = [index(0), index(0)]
            here[dim] = slot * shape[dim]
            if matrix is not None:
                source = _last_two(r, at, matrix[1])
                b.invoke(matrix[0], region(buffer, here, matrix[1]), source)
                return
            assert operand.owner is not None
            with b.mapped(("i", "j"), operand.owner, THREAD % WARP) as (i, j):
                x = r.buffer[_at(r, at[0] + i, at[1] + j)]
                b.store(buffer, (here[0] + i, here[1] + j), cast(x, operand.dtype))

    def single(
        self, operand: _Operand, buffer: ir.Buffer, owner: TaskMapping
    ) -> tuple[Instruction, tuple[int, ...]] | None:
        """The move of one fragment's matrices."""
        memory = _two_dims(operand.region)
        assert operand.owner is not None
        one = region(replace(buffer, shape=operand.shape, owner=operand.owner), (0, 0), operand.shape)
        found = self.matrix_move(one, operand.owner, memory, store=False)
        return found if found is not None and found[1] == operand.shape else None


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand: its region, its fragments' owner, and the tiles along ``dim`` that each warp needs, in order."""

    region: ir.Region
    dtype: DType
    shape: tuple[int, int]
    owner: TaskMapping | None
    tiles: TaskMapping
    dim: int

    def neighbours(self, count: int) -> bool:
        """True if ``count`` successive tiles of a warp are neighbours."""
        if count == 1:
            return True
        part = self.tiles.parts[0]
        assert isinstance(part, DigitMap)
        last = part.slots[-1] if part.slots else None
        return last is not None and last.stride == 1 and last.extent % count == 0


def _at(r: ir.Region, i: ir.Expr, j: ir.Expr) -> tuple[ir.Expr, ...]:
    """The indices of an element of a region's last two dimensions."""
    return (*r.start[:-2], r.start[-2] + i, r.start[-1] + j)


def _multiply_add(x: ir.Expr, y: ir.Expr, total: ir.Expr) -> ir.Expr:
    """x * y + total, rounded once for a float type that GPUs compute in."""
    return call("fma", x, y, total) if total.dtype in (f32, f64) else total + x * y


def _task(mapping: TaskMapping, worker: ir.Expr, slot: ir.Expr) -> tuple[ir.Expr, ...]:
    """The task of a worker at a slot, both symbolic."""
    part = mapping.parts[0]
    assert isinstance(part, DigitMap)
    digits = radix.split(slot, [d.extent for d in part.slots])
    return tuple(as_index(i) for i in part.indices(worker, digits))


def _tiles_of(owner: TaskMapping, shape: tuple[int, ...]) -> TaskMapping | None:
    """The mapping from warps to tiles, in the order of their slots."""
    count = 1
    for n in shape:
        count *= n
    for inner in _inner_mappings(owner, shape):
        found = quotient(owner, inner)
        if found is not None:
            return found
    return None


def _inner_mappings(owner: TaskMapping, shape: tuple[int, ...]) -> list[TaskMapping]:
    """The restriction of a mapping to a tile of ``shape``: the digits whose strides lie inside it."""
    part = owner.parts[0] if len(owner.parts) == 1 else None
    if not isinstance(part, DigitMap):
        return []
    workers, slots = (_inside(digits, shape) for digits in (part.workers, part.slots))
    return [TaskMapping(shape, (DigitMap(shape, workers, slots),), f"a part of {owner}")]


def _inside(digits: tuple, shape: tuple[int, ...]) -> tuple:  # type: ignore[type-arg]
    kept = []
    for d in digits:
        if d.stride >= shape[d.dim]:
            continue
        extent = min(d.extent, shape[d.dim] // d.stride) if d.stride else d.extent
        kept.append(replace(d, extent=extent))
    return tuple(kept)


def _tile_shapes(whole: tuple[int, ...], count: int, columns: int) -> list[tuple[int, ...]]:
    """Tiles of ``count`` matrices of 8 by ``columns`` elements, or transposed ones, along the two long dimensions."""
    long = [d for d, n in enumerate(whole) if n != 1]
    if len(long) != 2:
        return []
    shapes = []
    for p, q in ((8, columns), (columns, 8)):
        for down in (1, 2, 4):
            if count % down == 0:
                shape = list(whole)
                shape[long[0]], shape[long[1]] = p * down, q * (count // down)
                if shape[long[0]] <= whole[long[0]] and shape[long[1]] <= whole[long[1]]:
                    shapes.append(tuple(shape))
    return list(dict.fromkeys(shapes))


def _owner(r: ir.Region) -> TaskMapping | None:
    return r.buffer.owner if r.buffer.scope in (ir.Scope.REGISTER, ir.Scope.FRAGMENT) else None


def _tile(r: ir.Region, shape: tuple[int, ...]) -> Tile:
    """A region as the operand of a statement."""
    return Tile(repr(r.buffer), r.buffer.dtype, shape, _owner(r))


def _shape(r: ir.Region) -> tuple[int, ...]:
    shape = tuple(static_size(n) for n in r.shape)
    if None in shape:
        raise LoweringError(f"threads cannot divide a part of {r.buffer!r}", why="its size is symbolic.")
    return shape  # type: ignore[return-value]  # no None is in it


def _sizes_known(r: ir.Region) -> bool:
    return all(static_size(n) is not None for n in r.shape)


def _part(r: ir.Region, offsets: dict[int, ir.Expr], extents: Sequence[int]) -> ir.Region:
    start = tuple(x + offsets[d] if d in offsets else x for d, x in enumerate(r.start))
    return ir.Region(r.buffer, start, tuple(extents))


def _renamed(of: ir.Region, to: ir.Region, offsets: dict[int, ir.Expr]) -> dict[int, ir.Expr]:
    """Offsets along the dimensions of one region, as offsets along those of another with the same shape."""
    here = [d for d, n in enumerate(of.shape) if static_size(n) != 1]
    there = [d for d, n in enumerate(to.shape) if static_size(n) != 1]
    return {t: offsets[h] for h, t in zip(here, there, strict=True) if h in offsets}


def _spread(to: ir.Region, of: ir.Region, offsets: dict[int, ir.Expr]) -> list[ir.Expr]:
    renamed = _renamed(of, to, offsets)
    return [renamed.get(d, index(0)) for d in range(len(to.shape))]


def _part_like(
    r: ir.Region, like: ir.Region, offsets: dict[int, ir.Expr], count: int, long: Sequence[int]
) -> ir.Region:
    renamed = _renamed(like, r, offsets)
    last = max(renamed, default=len(r.shape) - 1)
    return _part(r, renamed, [count if d == last else 1 for d in range(len(r.shape))])


def _extents_like(r: ir.Region, like: ir.Region, shape: Sequence[int]) -> list[int]:
    here = [d for d, n in enumerate(like.shape) if static_size(n) != 1]
    there = [d for d, n in enumerate(r.shape) if static_size(n) != 1]
    extents = [1] * len(r.shape)
    for h, t in zip(here, there, strict=True):
        extents[t] = shape[h]
    return extents


def _two_dims(r: ir.Region) -> ir.Region:
    return ir.Region(r.buffer, r.start, (*[1] * (len(r.shape) - 2), *r.shape[-2:]))


def _last_two(r: ir.Region, at: Sequence[ir.Expr], shape: Sequence[int]) -> ir.Region:
    lead = len(r.start) - 2
    start = (*r.start[:lead], *(x + o for x, o in zip(r.start[lead:], at, strict=True)))
    return ir.Region(r.buffer, start, (*[1] * lead, *shape))
