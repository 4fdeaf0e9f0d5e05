"""The meaning of a kernel: an interpreter that trusts nothing.

It runs any kernel, lowered or not, in the exact element types, and reports errors that a processor would not: an index
out of bounds, a read of uninitialised memory, a race, a barrier that some threads do not reach, an output left
unwritten. Parallel loops, blocks and threads run in an order shuffled by a seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.digits import Task
from taskmap.ir.construct import index
from taskmap.ir.errors import InputError, TaskmapError, VerifyError
from taskmap.ir.interp.definitions import NUMPY_TYPES, convert
from taskmap.ir.interp.dispatch import Invocations, is_collective, may_wait
from taskmap.ir.interp.expressions import Environment, ExpressionCompiler, Value
from taskmap.ir.interp.instructions import multiply
from taskmap.ir.interp.memory import CheckedAccess, Memory, Storage, adopt, region_indices, row_major, span
from taskmap.ir.interp.operands import BlockContext
from taskmap.ir.interp.scheduler import Collective, SyncPoint, ThreadBlock
from taskmap.ir.interp.warp_ops import exchanged, value_alone
from taskmap.ir.isa.specs import BarrierSpec, MbarrierSpec
from taskmap.ir.lower.twins import inlined
from taskmap.ir.printer import print_body
from taskmap.ir.visit import children, stmt_exprs, walk_exprs, walk_stmts
from taskmap.ir.workers import BLOCKS, MULTIPROCESSORS, THREAD

__all__ = ["interpret"]

Array = NDArray[Any]
Plain = Callable[[Environment], None]
Resumable = Callable[[Environment], SyncPoint]
_MULTIPROCESSORS = 2


def interpret(
    kernel: ir.Kernel, arrays: Mapping[ir.Buffer, Array], dims: Mapping[ir.Var, int] | None = None, *, seed: int = 0
) -> dict[ir.Buffer, Array]:
    """Run ``kernel``; the result holds a logical array for each output.

    arrays: for each input a logical array (of the buffer's shape) or its flat storage; one flat array may serve several
    buffers, which then alias, and is written in place. An output may be given too, if the kernel updates it; an output
    that is not given starts poisoned, and every element of it must be written. bf16 is float32 with bf16 values.
    dims: the symbolic sizes. seed: determines the order of concurrent work.

    Raises InputError for missing or wrong inputs, IndexOutOfRangeError and VerifyError for errors of the kernel.
    """
    missing = [b.name for b in kernel.buffers if b not in arrays and b not in kernel.outputs]
    missing += [v.name for v in kernel.dims if v not in (dims or {})]
    if missing:
        raise InputError(f"kernel {kernel.name!r} is run without {', '.join(missing)}")
    with np.errstate(all="ignore"):
        return _Machine(inlined(kernel, texts=True), dict(dims or {}), seed).run(arrays)


class _Machine:
    """One run of one kernel."""

    def __init__(self, kernel: ir.Kernel, dims: dict[ir.Var, int], seed: int) -> None:
        self.kernel = kernel
        self.dims: dict[ir.Var, Value] = {**dims, MULTIPROCESSORS: _MULTIPROCESSORS}
        self.random = random.Random(seed)
        self.expressions = ExpressionCompiler(lambda e: value_alone(e, self.expressions))
        self.invocations = Invocations(self.expressions)
        self.epochs = itertools.count(1)
        self.sizes = Environment(self.dims, {}, {})
        # Threads that wait other than at a barrier of all threads are ordered in ways not followed here.
        self.tracks_shared = not any(isinstance(s, ir.Invoke) and _orders(s) for s in walk_stmts(kernel.body))

    def run(self, arrays: Mapping[ir.Buffer, Array]) -> dict[ir.Buffer, Array]:
        memory: dict[ir.Buffer, Memory] = {}
        flat: dict[int, Storage] = {}
        for b in self.kernel.buffers:
            if b not in arrays:
                memory[b] = self.new_memory(b, self.sizes)
                continue
            shape, strides, offset = self.geometry(b, self.sizes)
            memory[b] = adopt(b, shape, strides, offset, arrays[b])
            if arrays[b].ndim == 1:
                memory[b].storage = flat.setdefault(id(arrays[b]), memory[b].storage)
        launch = self.kernel.launch
        counters = launch.counters if launch else ()
        for b in launch.workspace if launch else ():
            memory[b] = self.new_memory(b, self.sizes)
        for b in counters:
            shape, strides, offset = self.geometry(b, self.sizes)
            memory[b] = adopt(b, shape, strides, offset, np.zeros(shape, np.int32))
        for b in self.kernel.own:
            memory[b].storage.tracked = False  # blocks order themselves by atomics and fences
        if launch:
            self.run_grid(launch, memory)
        else:
            self.plain(self.kernel.body)(Environment(dict(self.dims), memory, {}))
        for b in self.kernel.outputs:
            if b not in arrays and (at := memory[b].unwritten()) is not None:
                raise VerifyError(f"kernel {self.kernel.name!r} leaves {b.name}[{', '.join(map(str, at))}] unwritten")
        for b in counters:
            if memory[b].elements().any():
                raise VerifyError(f"kernel {self.kernel.name!r} does not leave its counters {b.name} at 0")
        return {b: memory[b].elements() for b in self.kernel.outputs}

    def shuffled(self, items: Iterable[Any]) -> list[Any]:
        order = list(items)
        self.random.shuffle(order)
        return order

    def size(self, dim: ir.Dim, frame: Environment) -> int:
        return dim if isinstance(dim, int) else int(self.expressions.compile(dim)(frame))

    def geometry(self, b: ir.Buffer, frame: Environment) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        shape = tuple(self.size(d, frame) for d in b.shape)
        strides = row_major(shape) if b.strides is None else tuple(self.size(s, frame) for s in b.strides)
        return shape, strides, self.size(b.offset, frame)

    def new_memory(self, b: ir.Buffer, frame: Environment) -> Memory:
        shape, strides, offset = self.geometry(b, frame)
        return Memory(b, shape, strides, offset, Storage.uninitialised(span(b, shape, strides, offset), b.dtype))

    # The grid of a GPU kernel: blocks one after the other, threads interleaved at barriers.

    def run_grid(self, launch: ir.GpuLaunch, memory: dict[ir.Buffer, Memory]) -> None:
        grid = [self.size(d, self.sizes) for d in launch.grid]
        epoch = next(self.epochs) if len(grid) and np.prod(grid) > 1 else 0
        body = self.generator(self.kernel.body)
        for number, block in enumerate(self.shuffled(itertools.product(*map(range, grid)))):
            shared: dict[ir.Buffer, Memory] = {}
            frames = []
            for t in range(launch.threads):
                names = {**self.dims, THREAD: t, **dict(zip(BLOCKS, block, strict=False))}
                frame = Environment(names, dict(memory), shared, CheckedAccess(epoch, number, t))
                frame.private_access = CheckedAccess(0, t, t)
                frames.append(frame)
            self.run_block(frames, body)

    def run_block(self, frames: Sequence[Environment], body: Resumable) -> None:
        """Run every thread of a block."""
        block = BlockContext()

        def epoch() -> None:
            number = next(self.epochs) if self.tracks_shared else 0
            for t, frame in enumerate(frames):
                frame.shared_access = CheckedAccess(number, t, t)

        def execute(asked: Collective, group: Sequence[int], requests: Sequence[Collective]) -> Sequence[Value]:
            try:
                if isinstance(asked.site, ir.Intrinsic):
                    return exchanged(asked.site, [r.args for r in requests])
                if isinstance(asked.site, ir.MatMul):
                    self.matmul_together(asked.site, [frames[t] for t in group])
                    return [None] * len(group)
                assert isinstance(asked.site, ir.Invoke)
                self.invocations.together(asked.site, [frames[t] for t in group])
            except TaskmapError as error:
                error.at(asked.source)
                raise
            return [None] * len(group)

        for frame in frames:
            frame.block = block
        epoch()
        ThreadBlock([body(frame) for frame in frames], execute, self.shuffled, epoch).run()

    # Statements, each compiled once to a function of a frame, or to a generator that yields at each barrier.

    def plain(self, body: ir.Body) -> Plain:
        steps = [self.located(s, _PLAIN[type(s)](self, s)) for s in body]
        if len(steps) == 1:
            return steps[0]

        def run(frame: Environment) -> None:
            for step in steps:
                step(frame)

        return run

    def located(self, stmt: ir.Stmt, step: Plain) -> Plain:
        """``step`` with its errors located at the statement, innermost first."""
        if isinstance(stmt, (ir.For, ir.MappedFor, ir.If)):
            return step

        def run(frame: Environment) -> None:
            try:
                step(frame)
            except TaskmapError as error:
                error.at(getattr(stmt, "source", None) or print_body(stmt))
                raise

        return run

    def generator(self, body: ir.Body) -> Resumable:
        steps: list[tuple[bool, Callable[[Environment], Any]]] = []
        for s in body:
            synchronises = any(_synchronises(inner) for inner in walk_stmts(s))
            steps.append((synchronises, self.synchronising(s) if synchronises else self.plain((s,))))

        def run(frame: Environment) -> SyncPoint:
            for synchronises, step in steps:
                if synchronises:
                    yield from step(frame)
                else:
                    step(frame)

        return run

    def synchronising(self, stmt: ir.Stmt) -> Resumable:
        if isinstance(stmt, ir.Barrier):

            def barrier(frame: Environment) -> SyncPoint:
                yield stmt

            return barrier
        values = [e for root in stmt_exprs(stmt) for e in _exchanges(root)]
        inner = self.inner(stmt)
        if not values:
            return inner
        args = [[self.expressions.compile(a) for a in e.args] for e in values]
        place = getattr(stmt, "source", None)

        def exchange(frame: Environment) -> SyncPoint:
            for e, getters in zip(values, args, strict=True):
                given = [get(frame) for get in getters]
                result = yield Collective(e, e.instruction.name, e.instruction.workers, given, place)
                frame.exchanged[id(e)] = result
            yield from inner(frame)

        return exchange

    def inner(self, stmt: ir.Stmt) -> Resumable:
        """A statement with its own collective expressions already evaluated."""
        if isinstance(stmt, ir.Invoke):
            return self.invoked(stmt)
        if isinstance(stmt, ir.MatMul) and stmt.c.buffer.owner is not None:
            request = Collective(stmt, "a product", stmt.c.buffer.owner.num_workers, (), stmt.source)

            def product(frame: Environment) -> SyncPoint:
                yield request

            return product
        if isinstance(stmt, ir.If):
            cond = self.expressions.compile(stmt.cond)
            then, orelse = self.generator(stmt.then), self.generator(stmt.orelse)

            def branch(frame: Environment) -> SyncPoint:
                yield from (then if cond(frame) else orelse)(frame)

            return branch
        if not isinstance(stmt, (ir.For, ir.MappedFor)):
            step = self.plain((stmt,))

            def plain(frame: Environment) -> SyncPoint:
                step(frame)
                return
                yield  # a generator that never waits

            return plain
        body = self.generator(stmt.body)
        rounds = self.rounds(stmt)

        def loop(frame: Environment) -> SyncPoint:
            for _ in rounds(frame):
                yield from body(frame)

        return loop

    def invoked(self, stmt: ir.Invoke) -> Resumable:
        """An instruction for which threads synchronise or wait."""
        waits = self.invocations.waits(stmt)
        if waits is None:
            request = Collective(stmt, stmt.instruction.name, stmt.instruction.workers, (), stmt.source)

            def together(frame: Environment) -> SyncPoint:
                yield request

            return together

        def wait(frame: Environment) -> SyncPoint:
            until = waits(frame)
            if until is not None:
                yield until

        return wait

    def invoke(self, stmt: ir.Invoke) -> Plain:
        return self.invocations.alone(stmt)

    def rounds(self, stmt: ir.Stmt) -> Callable[[Environment], Iterator[None]]:
        """A loop's iterations: sets the loop's variables before each."""
        if isinstance(stmt, ir.MappedFor):
            worker, mapping, names = self.expressions.compile(stmt.worker), stmt.mapping, stmt.vars

            tasks = lru_cache(maxsize=None)(mapping)

            def mapped(frame: Environment) -> Iterator[None]:
                for task in tasks(worker(frame)):
                    frame.vars.update(zip(names, task, strict=True))
                    yield

            return mapped
        assert isinstance(stmt, ir.For)
        extent, var = self.expressions.compile(stmt.extent), stmt.var
        parallel = stmt.kind is ir.LoopKind.PARALLEL

        def plain(frame: Environment) -> Iterator[None]:
            for k in range(extent(frame)):
                frame.vars[var] = k
                yield

        def shuffled(frame: Environment) -> Iterator[None]:
            outer = frame.access
            epoch = outer.epoch or next(self.epochs)
            for k in self.shuffled(range(extent(frame))):
                frame.vars[var] = k
                if not outer.epoch:
                    frame.access = CheckedAccess(epoch, k)
                yield
            frame.access = outer

        return shuffled if parallel else plain

    def loop(self, stmt: ir.For | ir.MappedFor) -> Plain:
        rounds, body = self.rounds(stmt), self.plain(stmt.body)

        def run(frame: Environment) -> None:
            for _ in rounds(frame):
                body(frame)

        return run

    def branch(self, stmt: ir.If) -> Plain:
        cond, then, orelse = self.expressions.compile(stmt.cond), self.plain(stmt.then), self.plain(stmt.orelse)
        return lambda frame: (then if cond(frame) else orelse)(frame)

    def store(self, stmt: ir.Store) -> Plain:
        indices = [self.expressions.compile(i) for i in stmt.indices]
        value, buffer = self.expressions.compile(stmt.value), stmt.buffer

        def run(frame: Environment) -> None:
            result = value(frame)
            frame.buffer(buffer).store([i(frame) for i in indices], result, frame.access_to(buffer))

        return run

    def let(self, stmt: ir.Let) -> Plain:
        value, var = self.expressions.compile(stmt.value), stmt.var

        def run(frame: Environment) -> None:
            frame.vars[var] = value(frame)

        return run

    def evaluate(self, stmt: ir.Evaluate) -> Plain:
        value = self.expressions.compile(stmt.value)

        def run(frame: Environment) -> None:
            value(frame)

        return run

    def allocate(self, stmt: ir.Allocate) -> Plain:
        b = stmt.buffer
        together = self.kernel.launch is not None and b.scope is ir.Scope.SHARED

        def run(frame: Environment) -> None:
            if not together:
                frame.memory[b] = self.new_memory(b, frame)
                return
            if b not in frame.shared:
                frame.shared[b] = self.new_memory(b, frame)
            frame.memory[b] = frame.shared[b]

        return run

    def barrier(self, stmt: ir.Barrier) -> Plain:
        raise VerifyError("a kernel without threads contains a barrier", where=stmt.source)

    def region(self, region: ir.Region) -> Callable[[Environment], tuple[tuple[int, ...], tuple[int, ...]]]:
        """(start, extents) of a region in a frame."""
        start = [self.expressions.compile(s) for s in region.start]
        extents = [self.expressions.compile(index(n)) for n in region.shape]
        return lambda frame: (tuple(s(frame) for s in start), tuple(n(frame) for n in extents))

    def read(self, frame: Environment, b: ir.Buffer, start: Sequence[int], extents: Sequence[int]) -> Array:
        at = region_indices(start, extents)
        flat: Array = frame.buffer(b).load(at, frame.access_to(b), frame.lenient > 0)
        return flat.reshape(tuple(extents))

    def write(self, frame: Environment, b: ir.Buffer, start: Sequence[int], values: Array) -> None:
        at = region_indices(start, values.shape)
        frame.buffer(b).store(at, values.reshape(-1), frame.access_to(b))

    def read_clipped(self, frame: Environment, b: ir.Buffer, start: Sequence[int], extents: Sequence[int]) -> Array:
        """The region, with 0 beyond the end of a buffer in global memory."""
        inside = _inside(frame, b, start, extents)
        part = self.read(frame, b, start, inside)
        return np.pad(part, [(0, n - k) for n, k in zip(extents, inside, strict=True)])

    def write_clipped(self, frame: Environment, b: ir.Buffer, start: Sequence[int], values: Array) -> None:
        inside = _inside(frame, b, start, values.shape)
        self.write(frame, b, start, values[tuple(slice(n) for n in inside)])

    def move(self, stmt: ir.Move) -> Plain:
        dst, src = self.region(stmt.dst), self.region(stmt.src)
        parts = self.parts(stmt)
        read, write = (self.read_clipped, self.write_clipped) if stmt.clipped else (self.read, self.write)

        def run(frame: Environment) -> None:
            (to, to_extents), (start, extents) = dst(frame), src(frame)
            if [n for n in to_extents if n != 1] != [n for n in extents if n != 1]:
                raise VerifyError(f"a region of {extents} is moved to one of {to_extents}")
            if parts is None:
                values = read(frame, stmt.src.buffer, start, extents)
                write(frame, stmt.dst.buffer, to, convert(values, stmt.dst.buffer.dtype).reshape(to_extents))
                return
            for offset, shape in parts(frame, [n for n in extents if n != 1]):
                here, there = _spread(offset, shape, to, to_extents), _spread(offset, shape, start, extents)
                values = read(frame, stmt.src.buffer, *there)
                write(frame, stmt.dst.buffer, here[0], convert(values, stmt.dst.buffer.dtype).reshape(here[1]))

        return run

    def parts(
        self, stmt: ir.Move
    ) -> Callable[[Environment, Sequence[int]], Iterator[tuple[Task, Sequence[int]]]] | None:
        """The parts of a copy done by one thread, as offset and shape; None if it does the whole copy."""
        owners = [r.buffer.owner for r in (stmt.dst, stmt.src) if r.buffer.owner is not None]
        mapping = stmt.mapping or (owners[0] if owners and self.kernel.launch else None)
        if mapping is None:
            return None
        worker = self.expressions.compile(stmt.worker if stmt.worker is not None else THREAD)
        long = [d for d, n in enumerate(mapping.task_shape) if n != 1]
        tasks = lru_cache(maxsize=None)(mapping)

        def each(frame: Environment, extents: Sequence[int]) -> Iterator[tuple[Task, Sequence[int]]]:
            counts = [mapping.task_shape[d] for d in long]
            if len(counts) != len(extents) or any(n % c for n, c in zip(extents, counts, strict=True)):
                counts, kept = list(mapping.task_shape), list(range(len(mapping.task_shape)))
                if len(counts) != len(extents) or any(n % c for n, c in zip(extents, counts, strict=True)):
                    raise VerifyError(f"{mapping} cannot divide a copy of {list(extents)}")
            else:
                kept = long
            shape = [n // c for n, c in zip(extents, counts, strict=True)]
            for task in tasks(worker(frame) % mapping.num_workers):
                yield tuple(task[d] * n for d, n in zip(kept, shape, strict=True)), shape

        return each

    def matmul(self, stmt: ir.MatMul) -> Plain:
        regions = [(r.buffer, self.region(r)) for r in (stmt.c, stmt.a, stmt.b)]
        dtype = stmt.c.buffer.dtype

        def run(frame: Environment) -> None:
            (c, a, b) = (self.read(frame, buffer, *where(frame)) for buffer, where in regions)
            if a.shape[-1] != b.shape[-2] or c.shape[-2:] != (a.shape[-2], b.shape[-1]):
                raise VerifyError(f"matrices of {a.shape} and {b.shape} do not make one of {c.shape}")
            self.write(frame, regions[0][0], regions[0][1](frame)[0], multiply(c, a, b, dtype))

        return run

    def matmul_together(self, stmt: ir.MatMul, frames: Sequence[Environment]) -> None:
        """A product into a tile that several threads hold: every operand is read from its holders, each result is
        written by its holders."""
        tiles = []
        for r in (stmt.c, stmt.a, stmt.b):
            start, extents = self.region(r)(frames[0])
            tiles.append(self.gather(frames, r.buffer, start, extents))
        c, a, b = tiles
        if a.shape[-1] != b.shape[-2] or c.shape[-2:] != (a.shape[-2], b.shape[-1]):
            raise VerifyError(f"matrices of {a.shape} and {b.shape} do not make one of {c.shape}")
        result = multiply(c, a, b, stmt.c.buffer.dtype)
        start, _ = self.region(stmt.c)(frames[0])
        for frame, at in self.held(frames, stmt.c.buffer, start, result.shape):
            indices = [s + i for s, i in zip(start, at, strict=True)]
            frame.buffer(stmt.c.buffer).store(indices, result[at], frame.access_to(stmt.c.buffer))

    def held(
        self, frames: Sequence[Environment], b: ir.Buffer, start: Sequence[int], shape: Sequence[int]
    ) -> Iterator[tuple[Environment, tuple[Array, ...]]]:
        """For each thread, its elements of a part of a distributed buffer, relative to the part's start."""
        assert b.owner is not None
        for frame in frames:
            tasks = np.array(b.owner(frame.vars[THREAD] % b.owner.num_workers), np.int64).reshape(-1, len(shape))
            at = tasks - np.array(start, np.int64)
            inside = np.all((at >= 0) & (at < np.array(shape)), axis=1)
            if inside.any():
                yield frame, tuple(at[inside].T)

    def gather(self, frames: Sequence[Environment], b: ir.Buffer, start: Sequence[int], shape: Sequence[int]) -> Array:
        """A part of a buffer as a group of threads sees it together."""
        if b.owner is None:
            frame = frames[0]
            if b.scope in (ir.Scope.GLOBAL, ir.Scope.SHARED):
                kept = frame.access, frame.shared_access
                # Read on behalf of all threads: any concurrent writer races, this thread included.
                frame.access, frame.shared_access = (replace(a, worker=-2) for a in kept)
                values = self.read(frame, b, start, shape)
                frame.access, frame.shared_access = kept
                return values
            raise VerifyError(f"{b!r} is private to each thread: threads cannot multiply it together")
        tile = np.zeros(tuple(shape), NUMPY_TYPES[b.dtype.name])
        for frame, at in self.held(frames, b, start, shape):
            indices = [s + i for s, i in zip(start, at, strict=True)]
            tile[at] = frame.buffer(b).load(indices, frame.access_to(b), False)
        return tile


def _synchronises(s: ir.Stmt) -> bool:
    """True if a statement itself makes threads synchronise or wait."""
    if (
        isinstance(s, ir.Barrier)
        or (isinstance(s, ir.MatMul) and s.c.buffer.owner is not None)
        or any(_exchanges(root) for root in stmt_exprs(s))
    ):
        return True
    return isinstance(s, ir.Invoke) and (is_collective(s.instruction) or may_wait(s.instruction))


def _exchanges(root: ir.Expr) -> list[ir.Intrinsic]:
    """The expressions that several threads evaluate together, operands first."""
    found: dict[int, ir.Intrinsic] = {}

    def visit(e: ir.Expr, seen: set[int]) -> None:
        if id(e) in seen:
            return
        seen.add(id(e))
        for kid in children(e):
            visit(kid, seen)
        if isinstance(e, ir.Intrinsic) and e.instruction.workers > 1:
            found[id(e)] = e

    if any(isinstance(e, ir.Intrinsic) for e in walk_exprs(root)):
        visit(root, set())
    return list(found.values())


def _orders(s: ir.Invoke) -> bool:
    """True if an instruction orders some threads, or signals asynchronous copies."""
    spec = s.instruction.spec
    return isinstance(spec, (MbarrierSpec, BarrierSpec)) and not (
        isinstance(spec, BarrierSpec) and spec.among == "cluster"
    )


def _inside(frame: Environment, b: ir.Buffer, start: Sequence[int], extents: Sequence[int]) -> list[int]:
    """The extents of the part of a region that lies inside its buffer, if that is in global memory."""
    if b.scope is not ir.Scope.GLOBAL:
        return list(extents)
    shape = frame.buffer(b).shape
    return [max(0, min(n, size - s)) for s, n, size in zip(start, extents, shape, strict=True)]


def _spread(
    offset: Sequence[int], shape: Sequence[int], start: Sequence[int], extents: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start and extents of a part of a region, including the dimensions of one element that the part leaves out."""
    at, size = list(start), [1] * len(extents)
    for d, o, n in zip([d for d, n in enumerate(extents) if n != 1], offset, shape, strict=True):
        at[d], size[d] = at[d] + o, n
    return tuple(at), tuple(size)


_PLAIN: dict[type, Callable[[_Machine, Any], Plain]] = {
    ir.Store: _Machine.store,
    ir.For: _Machine.loop,
    ir.MappedFor: _Machine.loop,
    ir.If: _Machine.branch,
    ir.Let: _Machine.let,
    ir.Allocate: _Machine.allocate,
    ir.Barrier: _Machine.barrier,
    ir.Evaluate: _Machine.evaluate,
    ir.Invoke: _Machine.invoke,
    ir.Move: _Machine.move,
    ir.MatMul: _Machine.matmul,
}
