"""Rules about structure: definitions and uses, loops, barriers, workers, and constructs that lowering must remove."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from taskmap.ir import nodes as ir
from taskmap.ir.construct import constant_value, static_size
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.verify.violation import Violation
from taskmap.ir.visit import defined_vars, stmt_bodies, stmt_exprs, walk_exprs, walk_stmts
from taskmap.ir.workers import THREAD, worker_extents


def _buffers_of(stmt: ir.Stmt) -> Iterator[ir.Buffer]:
    """The buffers that a statement itself accesses."""
    if isinstance(stmt, ir.Store):
        yield stmt.buffer
    elif isinstance(stmt, ir.Move):
        yield from (stmt.dst.buffer, stmt.src.buffer)
    elif isinstance(stmt, ir.MatMul):
        yield from (stmt.c.buffer, stmt.a.buffer, stmt.b.buffer)
    elif isinstance(stmt, ir.Invoke):
        yield from (r.buffer for r in stmt.regions)
    for root in stmt_exprs(stmt):
        yield from (e.buffer for e in walk_exprs(root) if isinstance(e, ir.Load))


def definitions(kernel: ir.Kernel) -> Iterator[Violation]:
    """Every variable and buffer is defined once, before its uses and in an enclosing body."""
    seen: set[ir.Var | ir.Buffer] = set()
    parameters: tuple[ir.Var | ir.Buffer, ...] = (*kernel.dims, *kernel.buffers, *kernel.own)
    for item in parameters:
        if item in seen:
            yield Violation(f"{item!r} is a parameter twice.")
        seen.add(item)
    yield from _parameters(kernel)
    yield from _scoped(kernel.body, {*seen, *worker_extents(kernel)}, seen)


def _parameters(kernel: ir.Kernel) -> Iterator[Violation]:
    for b in kernel.buffers:
        dims = (*b.shape, *(b.strides or ()), b.offset)
        used = {e for d in dims if isinstance(d, ir.Expr) for e in walk_exprs(d) if isinstance(e, ir.Var)}
        for var in used - set(kernel.dims):
            yield Violation(f"the shape of {b!r} mentions {var.name}, which is not a size of the kernel.")


def _scoped(body: ir.Body, outer: set[ir.Var | ir.Buffer], seen: set[ir.Var | ir.Buffer]) -> Iterator[Violation]:
    visible = set(outer)
    for stmt in body:
        exprs = [e for root in stmt_exprs(stmt) for e in walk_exprs(root)]
        bound = {v for e in exprs if isinstance(e, (ir.Reduce, ir.Scatter)) for v, _ in e.axes}
        bound |= {v for e in exprs if isinstance(e, Recurrence) for v, _ in e.bound}
        for root in stmt_exprs(stmt):
            for e in walk_exprs(root):
                if isinstance(e, ir.Var) and e not in visible and e not in bound:
                    yield Violation(f"{e.name} is used where it is not defined.", stmt)
        for b in _buffers_of(stmt):
            if b not in visible:
                yield Violation(f"{b!r} is used outside the scope of its allocation.", stmt)
        new: tuple[ir.Var | ir.Buffer, ...] = defined_vars(stmt)
        new += (stmt.buffer,) if isinstance(stmt, ir.Allocate) else ()
        for item in new:
            if item in seen:
                yield Violation(f"{item!r} is defined twice.", stmt)
            seen.add(item)
        for inner in stmt_bodies(stmt):
            yield from _scoped(inner, visible | set(new), seen)
        if isinstance(stmt, (ir.Let, ir.Allocate)):
            visible.update(new)


def outputs(kernel: ir.Kernel) -> Iterator[Violation]:
    """Outputs are parameters, and of the parameters only outputs are written."""
    for b in kernel.outputs:
        if b not in kernel.buffers:
            yield Violation(f"the output {b!r} is not a parameter.")
    inputs = set(kernel.buffers) - set(kernel.outputs)
    for stmt in walk_stmts(kernel.body):
        written = stmt.buffer if isinstance(stmt, ir.Store) else None
        written = (
            stmt.dst.buffer if isinstance(stmt, ir.Move) else stmt.c.buffer if isinstance(stmt, ir.MatMul) else written
        )
        for b in invoked_writes(stmt):
            if b in inputs:
                yield Violation(f"{b!r} is an input and is written.", stmt)
        if written in inputs:
            yield Violation(f"{written!r} is an input and is written.", stmt)


def invoked_writes(stmt: ir.Stmt) -> Iterator[ir.Buffer]:
    """The buffers written by instructions in a statement."""
    if isinstance(stmt, ir.Invoke):
        yield from (r.buffer for r in stmt.written)
        pairs = zip(stmt.instruction.parameters, stmt.operands, strict=False)
        yield from (o.buffer for p, o in pairs if isinstance(o, ir.TensorMap) and "w" in p.effect)
    for root in stmt_exprs(stmt):
        for e in walk_exprs(root):
            if isinstance(e, ir.Intrinsic):
                pairs = zip(e.instruction.parameters, e.args, strict=False)
                yield from (a.buffer for p, a in pairs if isinstance(a, ir.Load) and "w" in p.effect)


def launch(kernel: ir.Kernel) -> Iterator[Violation]:
    """A grid has one to three dimensions, a block threads, and a cluster up to three dimensions and 16 blocks."""
    at = kernel.launch
    if at is None:
        return
    if not at.grid or at.threads < 1:
        yield Violation(f"it has the grid {at.grid} and {at.threads} threads: it needs both or neither.")
    if len(at.grid) > 3:
        yield Violation(f"its grid has {len(at.grid)} dimensions, not at most 3.")
    if at.cluster and (len(at.cluster) > 3 or min(at.cluster) < 1 or math.prod(at.cluster) > 16):
        yield Violation(f"{at.cluster} is not a cluster: that has up to three dimensions and up to 16 blocks.")


def vector_loops(kernel: ir.Kernel) -> Iterator[Violation]:
    """A vector loop has a constant extent and contains no parallel, vector or task-mapped loop, and no spec."""
    for stmt in walk_stmts(kernel.body):
        if not isinstance(stmt, ir.For) or stmt.kind is not ir.LoopKind.VECTOR:
            continue
        if constant_value(stmt.extent) is None:
            yield Violation("the extent of a vector loop is not a constant.", stmt)
        for inner in walk_stmts(stmt.body):
            nested = isinstance(inner, ir.For) and inner.kind in (ir.LoopKind.VECTOR, ir.LoopKind.PARALLEL)
            if nested or isinstance(inner, (ir.MappedFor, ir.Move, ir.MatMul, ir.Barrier, ir.Invoke)):
                yield Violation(f"it is not allowed inside the vector loop over {stmt.var.name}.", inner)


def parallel_loops(kernel: ir.Kernel) -> Iterator[Violation]:
    """Parallel loops belong to the CPU; a GPU kernel has a grid and threads instead."""
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, ir.For) and stmt.kind is ir.LoopKind.PARALLEL and kernel.launch:
            yield Violation("a kernel with threads contains a parallel loop.", stmt)


def barriers(kernel: ir.Kernel) -> Iterator[Violation]:
    """Every thread of a block reaches every barrier: no condition or extent around it depends on the thread."""
    if kernel.launch is None:
        yield from (
            Violation("the kernel has no threads.", s) for s in walk_stmts(kernel.body) if isinstance(s, ir.Barrier)
        )
        return
    yield from _uniform(kernel.body, {THREAD}, None)


def _varies(e: ir.Expr, varying: set[ir.Var]) -> bool:
    """True if an expression may differ between the threads of a block."""
    return any(
        (isinstance(x, ir.Var) and x in varying)
        or (isinstance(x, ir.Load) and x.buffer.scope not in (ir.Scope.GLOBAL, ir.Scope.SHARED))
        for x in walk_exprs(e)
    )


def _uniform(body: ir.Body, varying: set[ir.Var], inside: str | None) -> Iterator[Violation]:
    for stmt in body:
        if isinstance(stmt, ir.Barrier) and inside:
            yield Violation(f"a barrier is inside {inside} that depends on the thread.", stmt)
        depends = any(_varies(e, varying) for e in stmt_exprs(stmt))
        if isinstance(stmt, ir.Let) and depends:
            varying.add(stmt.var)
        elif isinstance(stmt, ir.If):
            around = "a condition" if depends else inside
            yield from _uniform(stmt.then, varying, around)
            yield from _uniform(stmt.orelse, varying, around)
        elif isinstance(stmt, (ir.For, ir.MappedFor)):
            if isinstance(stmt, ir.MappedFor):
                varying.update(stmt.vars)
            elif inside is not None or depends:
                varying.add(stmt.var)
            yield from _uniform(stmt.body, varying, "a loop" if depends else inside)


def workers(kernel: ir.Kernel) -> Iterator[Violation]:
    """A task-mapped loop has one variable per dimension of its tasks, and as many workers as there are threads."""
    for stmt in walk_stmts(kernel.body):
        if not isinstance(stmt, ir.MappedFor):
            continue
        if len(stmt.vars) != len(stmt.mapping.task_shape):
            yield Violation(f"{stmt.mapping} has {len(stmt.mapping.task_shape)}-dimensional tasks.", stmt)
        count = stmt.mapping.num_workers
        worker = constant_value(stmt.worker)
        if worker is not None and not 0 <= worker < count:
            yield Violation(f"{stmt.mapping} has {count} workers; worker {worker} does not exist.", stmt)
        threads = kernel.launch.threads if kernel.launch else 0
        if stmt.worker is THREAD and threads > count:
            yield Violation(f"the mapping has {count} workers, but the block has {threads} threads.", stmt)
        if stmt.worker is THREAD and threads < count:
            yield Violation(f"the mapping has {count} workers, but the block only {threads} threads.", stmt)


def lowered(kernel: ir.Kernel) -> Iterator[Violation]:
    """After lowering: no specs, no task-mapped, vector or unrolled loops, and no distributed buffers remain. Loops of a
    GPU kernel may be unrolled by its compiler."""
    gone = (ir.LoopKind.VECTOR,) if kernel.launch else (ir.LoopKind.VECTOR, ir.LoopKind.UNROLLED)
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, (ir.MappedFor, ir.Move, ir.MatMul)):
            yield Violation(f"{type(stmt).__name__} is left.", stmt)
        elif isinstance(stmt, ir.For) and stmt.kind in gone:
            yield Violation(f"a loop of kind {stmt.kind.value} is left.", stmt)
        elif isinstance(stmt, ir.Allocate) and stmt.buffer.owner is not None:
            yield Violation(f"{stmt.buffer!r} is still distributed.", stmt)


def registers(kernel: ir.Kernel) -> Iterator[Violation]:
    """After lowering: register buffers have constant sizes and constant indices, for registers have no addresses. An
    expression of variables of unrolled loops alone counts as constant."""
    known: set[ir.Var] = set()
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, ir.For) and stmt.kind is ir.LoopKind.UNROLLED:
            known.add(stmt.var)
        if isinstance(stmt, ir.Let) and _is_constant(stmt.value, known):
            known.add(stmt.var)
        if isinstance(stmt, ir.Allocate) and stmt.buffer.scope is ir.Scope.REGISTER:
            if any(static_size(d) is None for d in stmt.buffer.shape):
                yield Violation(f"the size of {stmt.buffer!r} is not a constant.", stmt)
        used = [(stmt.buffer, stmt.indices)] if isinstance(stmt, ir.Store) else []
        used += [(e.buffer, e.indices) for r in stmt_exprs(stmt) for e in walk_exprs(r) if isinstance(e, ir.Load)]
        for buffer, indices in used:
            if buffer.scope is ir.Scope.REGISTER and not all(_is_constant(i, known) for i in indices):
                yield Violation(f"{buffer!r} is indexed by a value that is not a constant.", stmt)


def _is_constant(e: ir.Expr, known: Container[ir.Var]) -> bool:
    """True if an index consists of constants and ``known`` variables only."""
    return not any(isinstance(v, ir.Load) or (isinstance(v, ir.Var) and v not in known) for v in walk_exprs(e))
