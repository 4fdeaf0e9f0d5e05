"""Task-mapped loops and distributed registers become plain loops and plain registers.

acc = register(f32[64, 64], owner=spatial(16, 16) * repeat(4, 4))        acc = register(f32[16])
for i, j in acc.owner.on(thread):                                        for r0 in unroll(4):
    acc[i, j] = 0.0                                                          for r1 in unroll(4):
                                                                                 i = thread // 16 * 4 + r0
                                                                                 j = thread % 16 * 4 + r1
                                                                                 acc[i % 4 * 4 + j % 4] = 0.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.fragments import Fragment, fragment
from taskmap.ir.algebra.register_tile import RegisterTile, is_in_order
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, load
from taskmap.ir.lower.conditions import NO_DISTRIBUTED_REGISTERS, NO_MAPPED_LOOPS, NO_SPECS, KernelPass
from taskmap.ir.visit import map_body, map_expr, walk_exprs, walk_stmts


@dataclass(frozen=True, slots=True)
class DistributeRegisters(KernelPass):
    """A buffer with an owner becomes each worker's own registers, indexed by slot.

    A tile that a single worker holds in order is left as it is: flattening its indices gives the slot.
    """

    name = "distribute-registers"
    before = "each worker accesses only the elements that it holds"
    after = "no buffer has an owner, except one that holds the whole buffer in order"
    why_here = "before task-mapped loops are lowered, while indices are still the loop's own variables"
    requires = (NO_SPECS,)
    ensures = (NO_DISTRIBUTED_REGISTERS,)

    def run(self, kernel: ir.Kernel) -> ir.Kernel:
        """The same kernel with plain registers."""
        tiles: dict[ir.Buffer, tuple[RegisterTile, ir.Buffer]] = {}
        for s in walk_stmts(kernel.body):
            if isinstance(s, ir.Allocate) and s.buffer.owner is not None and not is_in_order(s.buffer.owner):
                tile = RegisterTile(s.buffer.owner.task_shape, s.buffer.owner)
                tiles[s.buffer] = tile, replace(s.buffer, shape=(tile.num_slots,), strides=None, owner=None)
        if not tiles:
            return kernel

        def slot(b: ir.Buffer, indices: tuple[ir.Expr, ...]) -> ir.Expr:
            at = (i.value if isinstance(i, ir.Const) else i for i in indices)
            return index(tiles[b][0].locate(*at)[1])

        def in_expr(e: ir.Expr) -> ir.Expr | None:
            if not isinstance(e, ir.Load) or e.buffer not in tiles:
                return None
            return load(tiles[e.buffer][1], (slot(e.buffer, e.indices),))

        def in_region(o: ir.Region | ir.Expr | ir.TensorMap, workers: int) -> ir.Region | ir.Expr | ir.TensorMap:
            if not isinstance(o, ir.Region) or o.buffer not in tiles:
                return o
            held = fragment(o.buffer.owner, o.shape, workers)
            assert isinstance(held, Fragment)
            first = slot(o.buffer, o.start) - held.origin
            return ir.Region(tiles[o.buffer][1], (first,), (held.count,))

        def in_stmt(s: ir.Stmt) -> ir.Stmt | None:
            if isinstance(s, ir.Invoke):
                return replace(s, operands=tuple(in_region(o, s.instruction.workers) for o in s.operands))
            if isinstance(s, ir.Store) and s.buffer in tiles:
                return replace(s, buffer=tiles[s.buffer][1], indices=(slot(s.buffer, s.indices),))
            return replace(s, buffer=tiles[s.buffer][1]) if isinstance(s, ir.Allocate) and s.buffer in tiles else None

        return replace(kernel, body=map_body(kernel.body, in_stmt, lambda e: map_expr(e, in_expr)))


@dataclass(frozen=True, slots=True)
class LowerMappedLoops(KernelPass):
    """A task-mapped loop becomes a loop per repeat, and quotients and remainders of the worker per spatial.

    unroll: loops of at most this many tasks are unrolled, so that their loads overlap.
    """

    unroll: int = 0
    name = "lower-mapped-loops"
    before = "every worker is below its mapping's number of workers"
    after = "no task-mapped loop is left"
    why_here = "after registers are distributed; before the passes that work on addresses"
    requires = (NO_DISTRIBUTED_REGISTERS,)
    ensures = (NO_MAPPED_LOOPS,)

    def run(self, kernel: ir.Kernel) -> ir.Kernel:
        """The same kernel in plain loops."""
        body = map_body(kernel.body, lambda s: lower_mapped(s, self.unroll) if isinstance(s, ir.MappedFor) else None)
        return kernel if body is kernel.body else replace(kernel, body=body)


def lower_mapped(s: ir.MappedFor, unroll: int = 0) -> ir.Body:
    """The loop nest of one task-mapped loop, unrolled if it has at most ``unroll`` tasks, or if its body accesses
    registers, which have no addresses.

    Raises MappingError for a mapping given by a function that cannot be lowered for a symbolic worker.
    """
    b = Builder(s.source)
    worker = b.let("worker", s.worker)
    variables: list[ir.Var] = []

    def fresh(extent: int) -> ir.Var:
        variables.append(ir.Var(f"r{len(variables)}"))
        return variables[-1]

    known = int(worker.value) if isinstance(worker, ir.Const) else worker
    loops, indices = s.mapping.on(known).lower(known, fresh)
    short = math.prod(extent for _, extent in loops) <= unroll
    kind = ir.LoopKind.UNROLLED if short or _touches_registers(s.body) else ir.LoopKind.SERIAL
    inner: ir.Body = (*(ir.Let(v, index(i), s.source) for v, i in zip(s.vars, indices, strict=True)), *s.body)
    for var, (_, extent) in zip(reversed(variables), reversed(loops), strict=True):
        inner = (ir.For(var, index(extent), kind, inner, source=s.source),)
    return (*b.body(), *inner)


def _touches_registers(body: ir.Body) -> bool:
    stored = {s.buffer for s in walk_stmts(body) if isinstance(s, ir.Store)}
    loaded = {e.buffer for e in walk_exprs(body) if isinstance(e, ir.Load)}
    invoked = {r.buffer for s in walk_stmts(body) if isinstance(s, ir.Invoke) for r in s.regions}
    return any(b.scope in (ir.Scope.REGISTER, ir.Scope.FRAGMENT) for b in stored | loaded | invoked)
