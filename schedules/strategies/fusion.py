"""Prologues and epilogues take the place of memory in the copies of a finished kernel.

    Move(tile, a[...])   a is computed: each element of the tile is the prologue's at its position, 0 beyond the end
    Move(c[...], tile)   c is an epilogue: each element of the tile goes into it; nothing beyond the end

The worker of an element, and the order, remain those of the Move: chunks of a mapping, elements that a thread holds, or
one worker's loops. Neighbours are computed in vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.algebra.quotient import quotient
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, as_index, const, index, static_size
from taskmap.ir.lower.clip import valid
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import (
    Body,
    Buffer,
    Compare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    MappedFor,
    Move,
    Region,
    Scope,
    Stmt,
    Store,
    Var,
)
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.visit import loads_in, map_body, map_expr, substitute, walk_exprs, walk_stmts
from taskmap.ir.workers import THREAD, worker_extents
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.source import copy_chunk, source_of

Read = Callable[[Sequence[Expr], Inliner], Expr]
"""An element at these indices."""
Write = Callable[[Sequence[Expr], Expr, Builder, Inliner], None]
"""Takes the element at these indices."""


@dataclass(frozen=True, slots=True)
class KeptTile:
    """Results on their way to memory, which are kept in ``tile`` in shared memory. write: takes the element at these
    indices, and a function that keeps a result. store: takes the result at these indices, where threads copy the tile.
    tested: none beyond the end is computed, and 0 is kept; otherwise all are."""

    tile: Buffer
    write: Callable[[Sequence[Expr], Expr, Builder, Inliner, Callable[[Expr], None]], None]
    store: Write
    tested: bool


_WIDEST = 16
"""Bytes of a thread's widest access."""
_AT_LEAST = 4
"""Neighbours that a thread tests, computes and moves together, by several accesses if they are wider."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """The operands of a kernel that are in no memory: those that it reads, and those that it writes. zeros: elements
    beyond the end are read as 0; otherwise the kernel does not use them, and they remain undefined. kept: those that it
    writes by way of shared memory."""

    task: Task
    target: Target
    reads: Mapping[Buffer, Read]
    writes: Mapping[Buffer, Write]
    zeros: bool = True
    kept: Mapping[Buffer, KeptTile] = field(default_factory=dict)

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel without Moves of these operands."""
        ranges, threads = _ranges(kernel), 0 if kernel.launch is None else kernel.launch.threads
        named = {s.var: s.value for s in walk_stmts(kernel.body) if isinstance(s, Let)}
        loops = {s.var for s in walk_stmts(kernel.body) if isinstance(s, For)}

        def stmt(s: Stmt) -> Body | None:
            if isinstance(s, Move) and (
                s.src.buffer in self.reads or s.dst.buffer in self.writes or s.dst.buffer in self.kept
            ):
                kept = self.kept.get(s.dst.buffer)
                if kept is not None and s.src.buffer is not kept.tile:
                    s = replace(s, clipped=s.clipped and kept.tested)
                return _Copy(self, s, threads, ranges, named, loops).body()
            return self.element(s, ranges) if isinstance(s, (Store, Let)) else None

        return replace(kernel, body=map_body(kernel.body, stmt))

    def element(self, s: Store | Let, ranges: Simplifier) -> Body | None:
        """A statement that reads or writes single elements of these operands."""
        written = self.writes.get(s.buffer) if isinstance(s, Store) else None
        if written is None and not any(e.buffer in self.reads for e in loads_in(s.value)):
            return None
        b = Builder(s.source)
        values = Inliner(self.task, b, ranges)

        def read(e: Expr) -> Expr | None:
            found = self.reads.get(e.buffer) if isinstance(e, Load) else None
            return found([ranges(i) for i in e.indices], values) if found and isinstance(e, Load) else None

        value = map_expr(s.value, read)
        if written is not None and isinstance(s, Store):
            written([ranges(i) for i in s.indices], value, b, values)
        else:
            b.emit(replace(s, value=value))
        return b.body()


@dataclass(slots=True)
class _Copy:
    """One Move. ``outer``: its side that is in no memory. ``tile``: the other one. named: the values of
    variables. loops: the variables of loops."""

    f: Fusion
    move: Move
    threads: int
    simplifier: Simplifier
    named: Mapping[Var, Expr]
    loops: Collection[Expr]
    b: Builder = field(init=False)
    tile: Region = field(init=False)

    def body(self) -> Body:
        b = self.b = Builder(self.move.source)
        reads = self.move.src is self.outer
        tile = self.tile = self.move.dst if reads else self.move.src
        if self.threads or tile.buffer.scope is not Scope.REGISTER:
            self.elements()
            return b.body()
        # A CPU's registers have no addresses.
        shape = tuple(n for n in tile.shape if static_size(n) != 1) or (1,)
        local = b.allocate(f"{tile.buffer.name}_memory", tile.buffer.dtype, shape, Scope.LOCAL)
        self.tile = region(local, (0,) * len(shape), shape)
        if not reads:
            b.move(self.tile, tile)
        self.elements()
        if reads:
            b.move(tile, self.tile)
        return b.body()

    @property
    def outer(self) -> Region:
        return self.move.src if self.move.src.buffer in self.f.reads else self.move.dst

    @property
    def long(self) -> list[int]:
        """The dimensions of the outer side that are longer than 1."""
        return [d for d, n in enumerate(self.outer.shape) if static_size(n) != 1]

    @property
    def along(self) -> int:
        """Of these dimensions, the one along which elements are neighbours in memory; the last, if nobody says so."""
        steps = strides_of(self.outer.buffer)
        return next((i for i, d in enumerate(self.long) if static_size(steps[d]) == 1), len(self.long) - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tile's dimensions that are longer than 1."""
        sizes = [static_size(n) for n in self.tile.shape]
        assert None not in sizes
        return tuple(n for n in sizes if n is not None and n != 1)

    def elements(self) -> None:
        mapping, owner = self.move.mapping, self.tile.buffer.owner
        if mapping is not None:
            self.chunks(mapping)
        elif owner is not None:
            self.held(owner)
        else:
            in_registers = self.tile.buffer.scope is Scope.REGISTER
            self.rows([index(0)] * len(self.shape), self.shape, LoopKind.UNROLLED if in_registers else LoopKind.SERIAL)

    def chunks(self, mapping: TaskMapping) -> None:
        """Equal chunks, shared out among threads."""
        worker = self.worker(mapping) if self.move.worker is None else as_index(self.move.worker)
        sizes = [n // t for n, t in zip(self.shape, mapping.task_shape, strict=False)]
        with self.b.mapped([f"i{d}" for d in range(len(mapping.task_shape))], mapping, worker) as at:
            self.bind(at, mapping.task_shape)
            starts = [i * n for i, n in zip(at, sizes, strict=False)]
            if self.move.asynchronous:
                self.asynchronous(starts, sizes)
            else:
                self.rows(starts, sizes, LoopKind.UNROLLED)

    def asynchronous(self, starts: Sequence[Expr], sizes: Sequence[int]) -> None:
        """A chunk that lies in memory, copied asynchronously; zeros if it lies beyond the end, or is 0."""
        outer, lanes = self.outer, math.prod(sizes)
        here = region(self.tile.buffer, _place(self.tile, starts), _spread(self.tile, sizes))
        chunk, test = Region(outer.buffer, tuple(_place(outer, starts)), _spread(outer, sizes)), as_expr(True)
        if self.move.clipped:
            tests = [(i, i < index(n)) for i, n in zip(chunk.start, outer.buffer.shape, strict=True)]
            tests = [t for d, t in enumerate(tests) if d not in self.move.exact]
            # Those that are the same in all iterations of a loop come first.
            for _, inside in sorted(tests, key=lambda t: any(e in self.loops for e in walk_exprs(t[0]))):
                test = test & inside
            chunk, _ = valid(chunk, self.move.exact)
        read, where = self.f.reads[outer.buffer], [self.simplifier(i) for i in chunk.start]
        found = source_of(self.f.task, self.simplifier, lambda values: read(where, values))
        assert found is not None
        copy_chunk(self.b, here, found, lanes, self.simplifier(test))

    def held(self, owner: TaskMapping) -> None:
        """The elements that each thread holds."""
        vectors, lanes = owner, max(_AT_LEAST, _WIDEST // self.tile.buffer.dtype.bytes)
        long = [d for d, n in enumerate(owner.task_shape) if n != 1]
        while lanes > 1:
            shape = [lanes if long and d == long[self.along] else 1 for d in range(len(owner.task_shape))]
            found = quotient(owner, repeat(*shape)) if long and self.is_aligned(lanes) else None
            if found is not None:
                vectors = found
                break
            lanes //= 2
        with self.b.mapped([f"i{d}" for d in range(len(owner.task_shape))], vectors, self.worker(owner)) as at:
            self.bind(at, vectors.task_shape)
            self.vector([at[d] * (lanes if d == long[self.along] else 1) for d in long], lanes)

    def worker(self, mapping: TaskMapping) -> Expr:
        return THREAD if mapping.num_workers >= self.threads else THREAD % mapping.num_workers

    def rows(self, starts: Sequence[Expr], sizes: Sequence[int], kind: LoopKind) -> None:
        """A rectangle of one worker, line by line, in vectors."""
        if not sizes:
            self.vector([], 1)
            return
        along = self.along
        others = [d for d in range(len(sizes)) if d != along]
        with self.b.grid([f"e{d}" for d in others], [sizes[d] for d in others], kind) as outer:
            self.bind(outer, [sizes[d] for d in others])
            first = list(starts)
            for d, i in zip(others, outer, strict=True):
                first[d] = starts[d] + i
            size, target = self.tile.buffer.dtype.bytes, self.f.target
            begin, lanes = 0, target.lanes(size) if target.kind == "cpu" else _WIDEST // size
            while begin < sizes[along]:
                count = (sizes[along] - begin) // lanes
                if count:
                    with self.b.loop("v", count, kind) as v:
                        self.bind([v], [count])
                        first[along] = starts[along] + v * lanes + begin
                        self.vector(first, lanes)
                begin, lanes = begin + count * lanes, lanes // 2

    def vector(self, starts: Sequence[Expr], lanes: int) -> None:
        """``lanes`` neighbours in memory, tested together, and one by one at an edge."""
        b, along = self.b, self.along

        def at(lane: Expr) -> list[Expr]:
            return [start + lane if d == along else start for d, start in enumerate(starts)]

        whole = self.is_whole(at(index(0)), lanes)
        with b.when(self.inside(at(index(0 if whole else lanes - 1)))), b.loop("lane", lanes, LoopKind.VECTOR) as lane:
            self.bind([lane], [lanes])
            self.element(at(lane))
        if whole and not self.f.zeros:
            return
        if whole:
            with b.otherwise(), b.loop("e", lanes, LoopKind.VECTOR) as e:
                self.beyond(at(e))
            return
        in_registers = self.tile.buffer.scope is Scope.REGISTER
        with b.otherwise(), b.loop("e", lanes, LoopKind.UNROLLED if in_registers else LoopKind.SERIAL) as e:
            self.bind([e], [lanes])
            with b.when(self.inside(at(e))):
                self.element(at(e))
            with b.otherwise():
                self.beyond(at(e))

    def is_whole(self, first: Sequence[Expr], lanes: int) -> bool:
        """True if none of ``lanes`` neighbours, from these offsets on, lies beyond the end alone."""
        if lanes == 1 or not self.move.clipped:
            return True
        d = self.long[self.along]
        size = static_size(self.outer.buffer.shape[d])
        terms = self.simplifier.poly(substitute(_place(self.outer, first)[d], self.named))
        return size is not None and size % lanes == 0 and all(c % lanes == 0 for c in terms.values())

    def is_aligned(self, lanes: int) -> bool:
        """True if a vector of ``lanes`` that begins at a multiple of them is whole. On a CPU, others are tested."""
        return not self.threads or self.is_whole([Var("i") * lanes for _ in self.long], lanes)

    def inside(self, offsets: Sequence[Expr]) -> Expr:
        """True if an element lies within the operand."""
        test = as_expr(True)
        if self.move.clipped:
            for d, (i, n) in enumerate(zip(_place(self.outer, offsets), self.outer.buffer.shape, strict=True)):
                test = test if d in self.move.exact else test & self.simplifier(i < index(n))
        return test

    def element(self, offsets: Sequence[Expr]) -> None:
        """One element, or those of all lanes."""
        values = Inliner(self.f.task, self.b, self.simplifier)
        where = [self.simplifier(i) for i in _place(self.outer, offsets)]
        here = _place(self.tile, offsets)
        read, kept = self.f.reads.get(self.outer.buffer), self.f.kept.get(self.outer.buffer)
        if read is not None:
            self.b.store(self.tile.buffer, here, read(where, values))
        elif kept is not None and self.tile.buffer is kept.tile:
            kept.store(where, self.tile.buffer[tuple(here)], self.b, values)
        elif kept is not None:
            keep = partial(self.b.store, kept.tile, tuple(offsets))
            kept.write(where, self.tile.buffer[tuple(here)], self.b, values, keep)
        else:
            self.f.writes[self.outer.buffer](where, self.tile.buffer[tuple(here)], self.b, values)

    def beyond(self, offsets: Sequence[Expr]) -> None:
        """One element beyond the end: 0 is read or kept, and nothing is written."""
        kept = self.f.kept.get(self.outer.buffer)
        if kept is not None and self.tile.buffer is not kept.tile:
            self.b.store(kept.tile, tuple(offsets), const(0, kept.tile.dtype))
        if self.outer.buffer in self.f.reads:
            self.b.store(self.tile.buffer, _place(self.tile, offsets), const(0, self.tile.buffer.dtype))

    def bind(self, variables: Sequence[Expr], extents: Sequence[int]) -> None:
        for v, n in zip(variables, extents, strict=True):
            Inliner(self.f.task, self.b, self.simplifier).bind(v, n)


def _place(r: Region, offsets: Sequence[Expr]) -> list[Expr]:
    """The indices of an element, by offsets along the dimensions that are longer than 1."""
    rest = iter(offsets)
    return [start if static_size(n) == 1 else start + next(rest) for start, n in zip(r.start, r.shape, strict=True)]


def _spread(r: Region, sizes: Sequence[int]) -> tuple[int, ...]:
    """The extents of a chunk: 1 along the dimensions that are 1 long."""
    rest = iter(sizes)
    return tuple(1 if static_size(n) == 1 else next(rest) for n in r.shape)


def _ranges(kernel: Kernel) -> Simplifier:
    """A simplifier that knows the ranges of a kernel's variables."""
    found = Simplifier()
    for v, n in worker_extents(kernel).items():
        found.bind(v, n)
    for s in walk_stmts(kernel.body):
        if isinstance(s, For):
            found.bind(s.var, s.extent)
        elif isinstance(s, MappedFor):
            for v, n in zip(s.vars, s.mapping.task_shape, strict=True):
                found.bind(v, n)
        elif isinstance(s, Let) and s.value.dtype.is_int:
            found.bind_range(s.var, found.range(s.value))
    last = kernel.body[-1] if kernel.body else None
    test = last.cond if isinstance(last, If) and not last.orelse else None
    if isinstance(test, Compare) and test.op == "lt" and isinstance(test.a, Var):
        before = (e for s in kernel.body[:-1] for e in walk_exprs(s))
        if all(e is not test.a for e in before):  # it is used behind the test alone
            found.bind(test.a, test.b)
    return found
