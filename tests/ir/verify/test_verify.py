"""The verifier: for each rule kernels that break it, and kernels that keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from taskmap.ir.algebra.mapping import from_function, repeat, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import call, cast, const, index, lane_reduce, ramp, reduce, select, widen
from taskmap.ir.errors import VerifyError
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import (
    Allocate,
    Barrier,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Compare,
    Evaluate,
    Expr,
    For,
    GpuLaunch,
    If,
    Intrinsic,
    Invoke,
    Kernel,
    LaneReduce,
    Let,
    Load,
    LoopKind,
    MappedFor,
    Ramp,
    Region,
    Scope,
    Select,
    Stmt,
    Store,
    TensorMap,
    Unary,
    Var,
)
from taskmap.ir.source import SourceLocation
from taskmap.ir.types import boolean, f16, f32, i32, i64
from taskmap.ir.verify.rules import LOWERED, RULES, flaws, unproved, verify
from taskmap.ir.workers import BLOCKS, THREAD
from tests.ir.random_kernels import COLS, ROWS, kernels

X, Y = Buffer("x", f32, (8, 8)), Buffer("y", f32, (8, 8))
N, P, Q = Var("n"), Var("i"), Var("j")
SYMBOLIC = Buffer("s", f32, (N,))
ZERO, ONE = index(0), index(1)
CLEAR = Store(Y, (ZERO, ZERO), cast(ZERO, f32))
P_BOOL = Var("p", boolean)
RED = instruction_named("red_add_f32")
SERIAL, VECTOR, PARALLEL = LoopKind.SERIAL, LoopKind.VECTOR, LoopKind.PARALLEL


def cpu(*body: Stmt, **changes: Any) -> Kernel:
    return replace(Kernel("k", (X, Y, SYMBOLIC), (Y,), (N,), body), **changes)


def gpu(*body: Stmt, outputs: tuple[Buffer, ...] = (Y,), threads: int = 32, **launch: Any) -> Kernel:
    return cpu(*body, outputs=outputs, launch=GpuLaunch(launch.pop("grid", (4,)), threads, **launch))


def store(value: Expr, *at: Expr) -> Stmt:
    return Store(Y, at or (ZERO, ZERO), value)


def loop(*body: Stmt, var: Var = P, extent: Expr | None = None, kind: LoopKind = SERIAL) -> Stmt:
    return For(var, index(8) if extent is None else extent, kind, body)


def local(scope: Scope = Scope.LOCAL, **changes: Any) -> Buffer:
    return replace(Buffer("t", f32, (4,), scope), **changes)


def spec(start: Any, shape: Any, buffer: Buffer = X) -> Region:
    return Region(buffer, tuple(map(index, start)), tuple(shape))


def built(write: Callable[[Builder], None]) -> tuple[Stmt, ...]:
    b = Builder()
    write(b)
    return b.body()


WHOLE = Region(X, (ZERO, ZERO), (8, 8))
INTO = Region(Y, (ZERO, ZERO), (8, 8))
HALF = cast(index(1), f16)
T, G = local(), local(Scope.REGISTER)

MMA, COPY, COMMIT, WAIT = map(
    instruction_named, ("mma_m16n8k16_f16_f32", "cp_async_16", "cp_async_commit", "cp_async_wait")
)
EXCHANGED = Intrinsic(instruction_named("shuffle_xor"), (index(32), cast(THREAD, i32), const(1, i32)), i32, 1)
VOTE, LOAD_TENSOR = instruction_named("vote_any"), instruction_named("tma_load_2d")
TILE = Buffer("tile", f32, (8, 8), Scope.SHARED)
C, A, B = (
    Buffer(name, t, owner.task_shape, Scope.REGISTER, owner=owner)
    for name, (t, owner) in zip("cab", MMA.operands, strict=True)
)
MULTIPLY = (Allocate(C), Allocate(A), Allocate(B), Invoke(MMA, tuple(region(b, (0, 0), b.shape) for b in (C, A, B))))
ROW, TILE_ROW = region(X, (0, 0), (1, 4)), region(TILE, (0, 0), (1, 4))
MAP = TensorMap("map", X, (8, 8))

BROKEN: list[tuple[str, str, Kernel]] = [
    ("operands", "too few", gpu(Invoke(COMMIT, (ONE,)))),
    ("operands", "a value that is to be constant", gpu(Invoke(WAIT, (THREAD,)))),
    ("operands", "registers of another type", gpu(Allocate(C), Invoke(MMA, (ROW, ROW, ROW)))),
    ("operands", "memory of another kind", gpu(Allocate(TILE), Invoke(COPY, (ROW, TILE_ROW)), outputs=(X, Y))),
    ("operands", "a value for memory", gpu(Allocate(TILE), Invoke(COPY, (TILE_ROW, ONE)))),
    ("operands", "an instruction of a CPU", gpu(Invoke(instruction_named("fma_f32x4"), ()))),
    ("operands", "a region for a tensor map", gpu(Allocate(TILE), Invoke(LOAD_TENSOR, (TILE_ROW, ROW, ROW, ONE, ONE)))),
    ("collectives", "on the cpu", cpu(Invoke(COMMIT, ()))),
    ("collectives", "half a warp", gpu(If(THREAD < 16, MULTIPLY))),
    ("collectives", "lanes that differ", gpu(loop(*MULTIPLY, extent=THREAD % 32))),
    ("collectives", "a vote of some", gpu(If(THREAD < 5, (Let(P_BOOL, Intrinsic(VOTE, (THREAD < 3,), boolean, 1)),)))),
    ("collectives", "what another lane holds", gpu(If(EXCHANGED < 5, MULTIPLY))),
    ("tensor maps", "of another kernel", gpu(maps=(TensorMap("m", Buffer("z", f32, (8, 8)), (8, 8)),))),
    ("tensor maps", "box of another rank", gpu(maps=(TensorMap("m", X, (8,)),))),
    ("tensor maps", "unknown swizzle", gpu(maps=(TensorMap("m", X, (8, 8), 48),))),
    ("tensor maps", "rows too long to swizzle", gpu(maps=(TensorMap("m", X, (8, 16), 32),))),
    ("tensor maps", "not an argument", gpu(Allocate(TILE), Invoke(LOAD_TENSOR, (TILE_ROW, MAP, TILE_ROW, ONE, ONE)))),
    ("launch", "a cluster of 32 blocks", gpu(cluster=(32,))),
    ("outputs", "input written by an instruction", gpu(Invoke(RED, (ROW, X[0, 0])))),
    ("launch", "grid without threads", gpu(threads=0)),
    ("launch", "threads without grid", gpu(grid=())),
    ("launch", "four dimensions", gpu(grid=(1, 1, 1, 1))),
    ("definitions", "parameter twice", cpu(buffers=(X, Y, X))),
    ("definitions", "size that is no parameter", cpu(dims=())),
    ("definitions", "unknown variable", cpu(store(cast(P, f32)))),
    ("definitions", "loop variable after its loop", cpu(loop(CLEAR), store(cast(P, f32)))),
    ("definitions", "name before its let", cpu(store(cast(P, f32)), Let(P, ONE))),
    ("definitions", "name after its block", cpu(If(N < 4, (Let(P, ONE),)), store(cast(P, f32)))),
    ("definitions", "variable defined twice", cpu(loop(CLEAR), loop(CLEAR))),
    ("definitions", "loop inside itself", cpu(loop(loop(CLEAR)))),
    ("definitions", "buffer not allocated", cpu(Store(T, (ZERO,), X[0, 0]))),
    ("definitions", "buffer loaded and not allocated", cpu(store(T[0]))),
    ("definitions", "buffer moved and not allocated", cpu(*built(lambda b: b.move(T, T)))),
    ("definitions", "buffer allocated twice", cpu(Allocate(T), Allocate(T))),
    ("definitions", "buffer after its block", cpu(If(N < 4, (Allocate(T),)), Store(T, (ZERO,), X[0, 0]))),
    ("definitions", "thread on the cpu", cpu(store(cast(THREAD, f32)))),
    ("definitions", "a dimension the grid lacks", gpu(store(cast(BLOCKS[1], f32)))),
    ("outputs", "not a parameter", cpu(outputs=(Buffer("z", f32, ()),))),
    ("outputs", "input stored", cpu(Store(X, (ZERO, ZERO), Y[0, 0]))),
    ("outputs", "input moved to", cpu(*built(lambda b: b.move(X, Y)))),
    ("outputs", "input multiplied into", cpu(*built(lambda b: b.matmul(X, Y, Y)))),
    ("types", "unary", cpu(store(Unary("neg", HALF, f32, 1)))),
    ("types", "not of a float", cpu(store(Unary("not", X[0, 0], f32, 1)))),
    ("types", "unknown unary", cpu(store(Unary("sqrt", X[0, 0], f32, 1)))),
    ("types", "binary", cpu(store(Binary("add", X[0, 0], HALF, f32, 1)))),
    ("types", "unknown binary", cpu(store(Binary("pow", X[0, 0], X[0, 0], f32, 1)))),
    ("types", "division of integers", cpu(Evaluate(Binary("div", N, N, i64, 1)))),
    ("types", "shift of floats", cpu(store(Binary("shl", X[0, 0], X[0, 0], f32, 1)))),
    ("types", "comparison", cpu(Evaluate(Compare("lt", X[0, 0], HALF, 1)))),
    ("types", "comparison that is no bool", cpu(Evaluate(Compare("lt", N, N, 1, i64)))),
    ("types", "unknown comparison", cpu(Evaluate(Compare("near", N, N, 1)))),
    ("types", "select", cpu(store(Select(N < 4, X[0, 0], HALF, f32, 1)))),
    ("types", "condition of a select", cpu(store(Select(N, X[0, 0], X[0, 0], f32, 1)))),
    ("types", "load", cpu(Evaluate(Load(X, (ZERO, ZERO), f16)))),
    ("types", "call of an unknown function", cpu(store(call("gamma", X[0, 0])))),
    ("types", "call with too few arguments", cpu(store(call("pow", X[0, 0])))),
    ("types", "call of an integer", cpu(Evaluate(call("exp", N)))),
    ("types", "call with a wrong result", cpu(store(Call("isnan", (X[0, 0],), f32, 1)))),
    ("types", "call of mixed types", cpu(store(Call("pow", (X[0, 0], HALF), f32, 1)))),
    ("types", "ramp", cpu(Evaluate(Ramp(cast(N, i32), ONE, 4)))),
    ("types", "broadcast", cpu(Evaluate(Broadcast(HALF, 4, f32)))),
    ("types", "lane reduction", cpu(Evaluate(LaneReduce("sum", widen(HALF, 4), f32)))),
    ("types", "unknown lane reduction", cpu(Evaluate(LaneReduce("mean", widen(HALF, 4), f16)))),
    ("types", "let", cpu(Let(Var("t", f32), HALF))),
    ("types", "store", cpu(store(HALF))),
    ("lanes", "binary", cpu(Evaluate(Binary("add", widen(N, 4), N, i64, 4)))),
    ("lanes", "unary", cpu(Evaluate(Unary("neg", widen(N, 4), i64, 8)))),
    ("lanes", "select", cpu(Evaluate(Select(N < 4, widen(N, 4), widen(N, 4), i64, 4)))),
    ("lanes", "call", cpu(Evaluate(Call("exp", (widen(X[0, 0], 4),), f32, 1)))),
    ("lanes", "ramp of vectors", cpu(Evaluate(Ramp(widen(N, 4), ONE, 4)))),
    ("lanes", "broadcast of a vector", cpu(Evaluate(Broadcast(widen(N, 4), 8, i64)))),
    ("lanes", "lane reduction to a vector", cpu(Evaluate(LaneReduce("sum", widen(N, 4), i64, 4)))),
    ("lanes", "load", cpu(Evaluate(Load(X, (ZERO, ramp(0, 1, 4)), f32, 8)))),
    ("lanes", "let", cpu(Let(Var("t"), widen(N, 4)))),
    ("lanes", "store of a vector to an element", cpu(store(widen(X[0, 0], 4)))),
    ("lanes", "store of a scalar to a vector", cpu(store(X[0, 0], ZERO, ramp(0, 1, 4)))),
    ("ranks", "load", cpu(Evaluate(Load(X, (ZERO,), f32)))),
    ("ranks", "store", cpu(Store(Y, (ZERO,), X[0, 0]))),
    ("ranks", "index of another type", cpu(Evaluate(Load(X, (ZERO, cast(N, i32)), f32)))),
    ("control", "condition", cpu(If(N, (CLEAR,)))),
    ("control", "vector condition", cpu(If(widen(N < 4, 4), (CLEAR,)))),
    ("control", "extent", cpu(loop(CLEAR, extent=cast(N, i32)))),
    ("control", "worker", cpu(MappedFor((P,), spatial(4), cast(N, i32), (CLEAR,)))),
    ("reductions", "reduce", cpu(store(reduce("sum", [(P, 8)], X[P, 0])))),
    ("regions", "rank", cpu(*built(lambda b: b.move(INTO, Region(X, (ZERO,), (8,)))))),
    ("regions", "shapes", cpu(*built(lambda b: b.move(spec((0, 0), (4, 4), Y), spec((0, 0), (4, 5)))))),
    ("regions", "matrices", cpu(*built(lambda b: b.matmul(INTO, WHOLE, spec((0, 0), (4, 8)))))),
    ("regions", "vector as matrix", cpu(Allocate(T), *built(lambda b: b.matmul(INTO, WHOLE, T)))),
    ("buffers", "strides", cpu(Allocate(local(strides=(1, 1))))),
    ("buffers", "layout", cpu(Allocate(local(layout=7)))),
    ("buffers", "shape of the owner", gpu(Allocate(local(Scope.REGISTER, owner=spatial(8))))),
    ("buffers", "element without a holder",
     gpu(Allocate(local(Scope.REGISTER, owner=from_function(lambda w: [(0,)], (4,), 2))))),
    ("vector loops", "symbolic extent", cpu(loop(CLEAR, extent=N, kind=VECTOR))),
    ("vector loops", "nested", cpu(loop(loop(CLEAR, var=Q, kind=VECTOR), kind=VECTOR))),
    ("vector loops", "parallel inside", cpu(loop(loop(CLEAR, var=Q, kind=PARALLEL), kind=VECTOR))),
    ("vector loops", "spec inside", cpu(loop(*built(lambda b: b.move(Y, X)), kind=VECTOR))),
    ("vector loops", "barrier inside", gpu(loop(Barrier(), kind=VECTOR))),
    ("parallel loops", "on the gpu", gpu(loop(CLEAR, kind=PARALLEL))),
    ("workers", "too few indices", cpu(MappedFor((P,), spatial(2, 2), ZERO, (CLEAR,)))),
    ("workers", "no such worker", cpu(MappedFor((P,), spatial(4), index(4), (CLEAR,)))),
    ("workers", "more threads than workers", gpu(MappedFor((P,), spatial(16), THREAD, (CLEAR,)))),
    ("workers", "fewer threads than workers", gpu(MappedFor((P,), spatial(64), THREAD, (CLEAR,)))),
    ("barriers", "on the cpu", cpu(Barrier())),
    ("barriers", "under a condition on the thread", gpu(If(THREAD < 8, (Barrier(),)))),
    ("barriers", "in the other branch", gpu(If(THREAD < 8, (), (Barrier(),)))),
    ("barriers", "through a name", gpu(Let(P, THREAD % 2), If(P < 1, (Barrier(),)))),
    ("barriers", "through registers", gpu(Allocate(G), If(G[0] < 1.0, (Barrier(),)))),
    ("barriers", "in a loop as long as the thread says", gpu(loop(Barrier(), extent=THREAD))),
    ("barriers", "in a task-mapped loop", gpu(MappedFor((P,), repeat(4) * spatial(32), THREAD, (Barrier(),)))),
    ("barriers", "deeper inside", gpu(If(THREAD < 8, (loop(Barrier()),)))),
    ("bounds", "constant index", cpu(store(X[0, 8]))),
    ("bounds", "negative index", cpu(store(X[0, 0], ZERO, index(-1)))),
    ("bounds", "loop too long", cpu(loop(store(X[P, 0]), extent=index(9)))),
    ("bounds", "linear in two loops", cpu(loop(loop(store(X[0, P + Q]), var=Q)))),
    ("bounds", "through a name", cpu(loop(Let(Q, P * 2), store(X[0, Q])))),
    ("bounds", "first index negative", cpu(loop(store(X[0, P - 1])))),
    ("bounds", "in a select", cpu(loop(store(select(P < 8, X[0, P], X[0, 0])), extent=index(9)))),
    ("bounds", "whole range outside, under a condition", cpu(If(N < 4, (store(X[0, 9]),)))),
    ("bounds", "lanes", cpu(Evaluate(X[0, ramp(4, 1, 8)]))),
    ("bounds", "thread", gpu(store(X[0, THREAD]))),
    ("bounds", "tasks of a mapping", gpu(MappedFor((P,), spatial(32), THREAD, (store(X[0, P]),)))),
    ("bounds", "region", cpu(*built(lambda b: b.move(spec((4, 0), (8, 8), Y), WHOLE)))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "title", "kernel"), BROKEN, ids=[f"{r}: {t}" for r, t, _ in BROKEN])
def test_a_broken_rule_is_found_by_its_rule(rule: str, title: str, kernel: Kernel) -> None:
    found = [r.name for r, _ in flaws(kernel)]
    assert rule in found
    with pytest.raises(VerifyError, match=rf"kernel 'k' violates the rule '{found[0]}'"):
        verify(kernel)


BROKEN_LOWERED: list[tuple[str, str, Kernel]] = [
    ("lowered", "move", cpu(*built(lambda b: b.move(Y, X)))),
    ("lowered", "matmul", cpu(*built(lambda b: b.matmul(Y, X, X)))),
    ("lowered", "task-mapped loop", cpu(MappedFor((P,), spatial(4), ZERO, (CLEAR,)))),
    ("lowered", "vector loop", cpu(loop(CLEAR, kind=VECTOR))),
    ("lowered", "unrolled loop", cpu(loop(CLEAR, kind=LoopKind.UNROLLED))),
    ("lowered", "distributed buffer", cpu(Allocate(local(Scope.REGISTER, owner=spatial(4))))),
    ("registers", "symbolic size", cpu(Allocate(local(Scope.REGISTER, shape=(N,))))),
    ("registers", "store at a variable", cpu(Allocate(G), loop(Store(G, (P,), X[0, 0]), extent=index(4)))),
    ("registers", "load at a variable", cpu(Allocate(G), loop(store(G[P]), extent=index(4)))),
    ("registers", "lanes at a variable", cpu(Allocate(G), loop(Evaluate(G[ramp(P, 1, 2)]), extent=index(3)))),
]


@pytest.mark.parametrize(
    ("rule", "title", "kernel"), BROKEN_LOWERED, ids=[f"{r}: {t}" for r, t, _ in BROKEN_LOWERED]
)  # fmt: skip
def test_constructs_that_lowering_must_remove(rule: str, title: str, kernel: Kernel) -> None:
    assert rule in [r.name for r, _ in flaws(kernel, LOWERED)]
    verify(kernel)


def test_every_rule_has_a_kernel_that_breaks_it() -> None:
    assert {r.name for r in RULES} == {rule for rule, _, _ in BROKEN}
    assert {r.name for r in LOWERED} == {rule for rule, _, _ in BROKEN_LOWERED}
    assert all(r.check.__doc__ for r in (*RULES, *LOWERED))


KEPT: list[tuple[str, Kernel]] = [
    ("nothing", cpu()),
    ("index under its condition", cpu(loop(If(P < N, (store(SYMBOLIC[P]),)), extent=index(100)))),
    ("tail of a tiled loop", cpu(loop(If(P * 8 < N, (store(SYMBOLIC[P * 8]),)), extent=N))),
    ("a loop that may not run", cpu(loop(store(X[0, 0]), extent=N))),
    ("beyond the end of something symbolic", cpu(store(SYMBOLIC[9]))),
    ("barrier in a loop of one length", gpu(loop(Barrier(), extent=N))),
    ("barrier under a condition on the block", gpu(If(BLOCKS[0] < 2, (Barrier(),)))),
    ("barrier under a condition on shared data",
     gpu(Allocate(replace(T, scope=Scope.SHARED)), If(SYMBOLIC[0] < 2.0, (Barrier(),)))),
    ("the same name twice", cpu(Let(Var("t"), ONE), Let(Var("t"), ONE))),
    ("a vector store", cpu(loop(Store(Y, (P, ramp(0, 1, 8)), X[P, ramp(0, 1, 8)] * widen(X[0, 0], 8))))),
    ("a vector folded", cpu(store(lane_reduce("max", X[0, ramp(0, 1, 8)])))),
    ("a checked index", cpu(loop(store(X[0, call("checked_index", N, index(8))])))),
    ("regions with extents of one", cpu(*built(lambda b: b.move(spec((0, 0), (1, 8), Y), spec((0, 3), (8, 1)))))),
    ("a worker modulo", gpu(MappedFor((P,), spatial(8), THREAD % 8, (store(X[0, P]),)))),
    ("a bool", cpu(Let(Var("t", boolean), N < 4))),
]  # fmt: skip


@pytest.mark.parametrize("kernel", [k for _, k in KEPT], ids=[t for t, _ in KEPT])
def test_kernels_in_order_are_accepted(kernel: Kernel) -> None:
    verify(kernel)


def test_unproved_accesses_are_listed() -> None:
    kernel = cpu(loop(store(SYMBOLIC[P])), loop(If(Q < N, (store(SYMBOLIC[Q]),)), var=Q))
    (access,) = unproved(kernel)
    assert str(access) == "index i of dimension 0 of s lies in [0, 7], and the extent is n"


def test_the_error_shows_the_statement_or_the_users_line() -> None:
    with pytest.raises(VerifyError) as error:
        verify(cpu(loop(store(X[0, P]), extent=index(9))))
    assert str(error.value) == (
        "taskmap: kernel 'k' violates the rule 'bounds'\n"
        "  y[0, 0] = x[0, i]\n"
        "  index i of dimension 1 of x lies in [0, 8], and the extent is 8."
    )
    place = SourceLocation("k.py", 3, 4, 8, "    y[0, 0] = x[0, 9]")
    with pytest.raises(VerifyError) as error:
        verify(cpu(replace(store(X[0, 9]), source=place)))  # type: ignore[type-var]  # a Store has a source
    assert str(error.value) == (
        "taskmap: kernel 'k' violates the rule 'bounds'\n"
        "  k.py:3:  y[0, 0] = x[0, 9]\n"
        "           ^^^^\n"
        "  in y[0, 0] = x[0, 9]\n"
        "  index 9 of dimension 1 of x lies in [9, 9], and the extent is 8."
    )


@settings(max_examples=30)
@given(kernels())
def test_kernels_in_bounds_are_accepted_and_mostly_proved(kernel: Kernel) -> None:
    verify(kernel)
    assert not unproved(kernel)
    x = np.zeros((ROWS, COLS), np.float32)
    interpret(kernel, {kernel.buffers[0]: x}, dict.fromkeys(kernel.dims, ROWS))
