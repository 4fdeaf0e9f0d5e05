"""Barriers that the tree does not mention: between threads that write and threads that read the same shared memory.

A barrier is inserted before a statement that touches a buffer which other threads may have written, or still read,
since the last barrier. A loop's body is looked at twice, the second time after itself; if one barrier at its end is all
that it needs, it stands there, so that copies into registers may be in flight throughout an iteration. Of buffers with
several stages, accesses to different stages do not meet; an asynchronous copy is written when it is waited for. A
cluster's barrier is one of the block, too: what precedes the arrival is ordered before what follows the wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from taskmap.ir import nodes as ir
from taskmap.ir.construct import constant_value
from taskmap.ir.isa.specs import BarrierSpec, GroupSpec
from taskmap.ir.visit import stmt_bodies, stmt_exprs, walk_exprs, walk_stmts
from taskmap.ir.workers import THREAD


@dataclass(slots=True)
class Stages:
    """counts: the stages of buffers. offsets: indices of stages, each as the number of parts ahead of the one in use.
    asynchronous: buffers that asynchronous copies fill. guarded: buffers whose stages mbarriers guard. free: buffers
    whose threads do not wait for each other, because the strategy says so (``no_sync``). varied: variables that differ
    among the threads of a block."""

    counts: dict[ir.Buffer, int] = field(default_factory=dict)
    offsets: dict[ir.Expr, int] = field(default_factory=dict)
    asynchronous: set[ir.Buffer] = field(default_factory=set)
    guarded: set[ir.Buffer] = field(default_factory=set)
    free: set[ir.Buffer] = field(default_factory=set)
    varied: set[ir.Expr] = field(default_factory=lambda: {THREAD})


@dataclass(frozen=True, slots=True)
class _Access:
    """An access to shared memory since the last barrier. offset: its stage; None: any."""

    buffer: ir.Buffer
    writes: bool
    offset: int | None


State = frozenset[_Access]


def with_barriers(body: ir.Body, stages: Stages) -> ir.Body:
    """The body with the barriers that its accesses to shared memory need."""
    return _Barriers(stages).body(body, frozenset())[0]


def left_out(body: ir.Body, stages: Stages) -> list[ir.Buffer]:
    """The buffers that lack a barrier because they are ``free``: in a body that has all others."""
    count = _count(body)
    missing = (b for b in stages.free if _count(with_barriers(body, replace(stages, free=stages.free - {b}))) > count)
    return list(missing)


def _count(body: ir.Body) -> int:
    return sum(isinstance(s, ir.Barrier) for s in walk_stmts(body))


@dataclass(frozen=True, slots=True)
class _Barriers:
    """known: the accesses of statements that have been looked at, by id; the statement is kept, so its id is unique."""

    stages: Stages
    known: dict[int, tuple[ir.Stmt, State]] = field(default_factory=dict)

    def body(self, body: ir.Body, state: State) -> tuple[ir.Body, State]:
        out: list[ir.Stmt] = []
        since: State | None = None  # the arrival at the cluster's barrier
        for s in body:
            if isinstance(s, ir.For) and self.needs_inside(s):
                ended = self.ended(s)
                if ended is not None and any(self.meet(a, b) for a in state for b in self.accesses(s)):
                    out.append(ir.Barrier(s.source))
                    state = frozenset()
                s, state = self.loop(s, state) if ended is None else (ended, state)
                out.append(s)
                since = None
                continue
            if isinstance(s, ir.Barrier):
                state = frozenset()
            action = _at_cluster(s)
            if action == "arrive":
                since = frozenset()
            elif action == "wait" and since is not None:
                state, since = state & since, None
            new = self.accesses(s)
            since = None if since is None else since | new
            if not _is_wait(s) and any(self.meet(a, b) for a in state for b in new):
                out.append(ir.Barrier(getattr(s, "source", None)))
                state = frozenset()
            if isinstance(s, ir.If) and self.is_uniform(s.cond):
                then, after = self.body(s.then, state)
                orelse, otherwise = self.body(s.orelse, state)
                s, state = replace(s, then=then, orelse=orelse), after | otherwise
            else:
                state |= new
            out.append(s)
        return tuple(out), state

    def loop(self, s: ir.For, state: State) -> tuple[ir.For, State]:
        """The body in its steady state: after what came before the loop, and after the body itself."""
        _, once = self.body(s.body, state)
        for _ in range(3):
            body, after = self.body(s.body, state | self.later(s, once))
            if after == once:
                break
            once = once | after
        after = after if self.has_barrier(body) else state | after
        # Nothing is known of the last part.
        return replace(s, body=body), frozenset(replace(a, offset=None) for a in after)

    def ended(self, s: ir.For) -> ir.For | None:
        """The loop with a barrier at the end of its body, if its iterations need no other."""
        body, _ = self.body(s.body, frozenset())
        return None if self.has_barrier(body) else replace(s, body=(*body, ir.Barrier(s.source)))

    def has_barrier(self, body: ir.Body) -> bool:
        return any(isinstance(s, ir.Barrier) for s in walk_stmts(body))

    def needs_inside(self, s: ir.For) -> bool:
        """True if the iterations of a loop need barriers between them, whatever precedes it."""
        if s.kind is ir.LoopKind.VECTOR or not self.touches(s):
            return False
        return self.has_barrier(self.loop(s, frozenset())[0].body)

    def later(self, s: ir.For, state: State) -> State:
        """Accesses of one iteration as the next one sees them."""
        if not any(e is s.var for stage in self.stages.offsets for e in walk_exprs(stage)):
            return state
        return frozenset(a if a.offset is None else replace(a, offset=a.offset - 1) for a in state)

    def meet(self, a: _Access, b: _Access) -> bool:
        if a.buffer is not b.buffer or not (a.writes or b.writes) or a.buffer in self.stages.free:
            return False
        if a.offset is None or b.offset is None:
            return True
        return (a.offset - b.offset) % self.stages.counts[a.buffer] == 0

    def is_uniform(self, cond: ir.Expr) -> bool:
        """True if all threads of a block decide alike."""
        return not any(e in self.stages.varied or isinstance(e, ir.Load) for e in walk_exprs(cond))

    def touches(self, s: ir.Stmt) -> bool:
        return bool(self.accesses(s))

    def accesses(self, s: ir.Stmt) -> State:
        """The accesses to shared memory of a statement and of those inside it."""
        if id(s) not in self.known:
            self.known[id(s)] = s, frozenset(self.found(s))
        return self.known[id(s)][1]

    def found(self, s: ir.Stmt) -> Iterator[_Access]:
        """The same, one after the other."""
        for body in stmt_bodies(s):
            for inner in body:
                yield from self.accesses(inner)
        for root in stmt_exprs(s):
            loads = (e for e in _loads(root) if e.buffer not in self.stages.guarded)
            yield from (self.access(e.buffer, e.indices, False) for e in loads)
        if _is_wait(s):
            yield from (_Access(b, True, 0) for b in self.stages.asynchronous)
            return
        for region, writes in _regions(s):
            if region.buffer.scope is ir.Scope.SHARED and region.buffer not in self.stages.guarded:
                yield self.access(region.buffer, region.start, writes)

    def access(self, buffer: ir.Buffer, at: tuple[ir.Expr, ...], writes: bool) -> _Access:
        if buffer not in self.stages.counts:
            return _Access(buffer, writes, None)
        number = constant_value(at[0])  # before the loop, in which part 0 is the first
        return _Access(buffer, writes, self.stages.offsets.get(at[0]) if number is None else int(number))


def _loads(root: ir.Expr) -> Iterator[ir.Load]:
    return (e for e in walk_exprs(root) if isinstance(e, ir.Load) and e.buffer.scope is ir.Scope.SHARED)


def _regions(s: ir.Stmt) -> Iterable[tuple[ir.Region, bool]]:
    if isinstance(s, ir.Move):
        return ((s.src, False), (s.dst, True))
    if isinstance(s, ir.MatMul):
        return ((s.a, False), (s.b, False), (s.c, True))
    if isinstance(s, ir.Store):
        return ((ir.Region(s.buffer, s.indices, (1,) * len(s.indices)), True),)
    if isinstance(s, ir.Invoke):
        written = set(map(id, s.written))
        return tuple((r, id(r) in written) for r in s.regions)
    return ()


def _at_cluster(s: ir.Stmt) -> str:
    """The action of a statement at the cluster's barrier; empty for other statements."""
    spec = s.instruction.spec if isinstance(s, ir.Invoke) else None
    return spec.action if isinstance(spec, BarrierSpec) and spec.among == "cluster" else ""


def _is_wait(s: ir.Stmt) -> bool:
    """True for the statement after which a thread's asynchronous copies have landed."""
    spec = s.instruction.spec if isinstance(s, ir.Invoke) else None
    return isinstance(spec, GroupSpec) and spec.action == "wait"
