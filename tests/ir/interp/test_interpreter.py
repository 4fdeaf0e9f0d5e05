"""The interpreter: exact values, and everything that it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.algebra.layout import row_major
from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import (
    binary,
    call,
    cast,
    compare,
    const,
    eq,
    index,
    lane_reduce,
    maximum,
    minimum,
    ramp,
    reduce,
    select,
    unary,
    widen,
)
from taskmap.ir.errors import IndexOutOfRangeError, InputError, TaskmapError, VerifyError
from taskmap.ir.interp.definitions import NUMPY_TYPES, round_bf16
from taskmap.ir.interp.run import interpret
from taskmap.ir.nodes import Buffer, Expr, ExprLike, GpuLaunch, Kernel, LoopKind, Scope, Var
from taskmap.ir.types import ALL_DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from taskmap.ir.workers import BLOCKS, THREAD

SERIAL, PARALLEL = LoopKind.SERIAL, LoopKind.PARALLEL
rng = np.random.default_rng(7)


def make(inputs: list[Buffer], output: Buffer, write: Callable[[Builder], None], **launch: Any) -> Kernel:
    b = Builder()
    write(b)
    return Kernel("k", (*inputs, output), (output,), (), b.body(), GpuLaunch(**launch) if launch else None)


def elementwise(dtype: DType, out: DType, value: Callable[[Expr, Expr], ExprLike], a: Any, b: Any) -> Any:
    """The kernel out[i] = value(a[i], b[i]), run."""
    n = len(a)
    x, y, z = Buffer("x", dtype, (n,)), Buffer("y", dtype, (n,)), Buffer("z", out, (n,))

    def write(build: Builder) -> None:
        with build.loop("i", n, PARALLEL) as i:
            build.store(z, i, value(x[i], y[i]))

    return interpret(make([x, y], z, write), {x: a, y: b})[z]


INTEGERS = [t for t in ALL_DTYPES if t.is_int]
FLOATS = [f16, f32, f64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_and_round_toward_minus_infinity(dtype: DType) -> None:
    kind: Any = NUMPY_TYPES[dtype.name]
    info = np.iinfo(kind)
    edges = np.array([info.min, info.min + 1, -1 if info.min else 5, 0, 1, 7, info.max], kind)
    a, b = np.repeat(edges, len(edges)), np.tile(edges, len(edges))
    nonzero = np.where(b == 0, kind(3), b)
    with np.errstate(all="ignore"):
        for op, expected in [("add", a + b), ("sub", a - b), ("mul", a * b), ("min", np.minimum(a, b))]:
            np.testing.assert_array_equal(elementwise(dtype, dtype, partial(binary, op), a, b), expected)
        ok = ~((a == info.min) & (nonzero == -1 if info.min else False))
        quotient = elementwise(dtype, dtype, lambda x, y: x // y, a[ok], nonzero[ok])
        remainder = elementwise(dtype, dtype, lambda x, y: x % y, a[ok], nonzero[ok])
    np.testing.assert_array_equal(quotient, a[ok] // nonzero[ok])
    np.testing.assert_array_equal(remainder, a[ok] % nonzero[ok])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bits(dtype: DType) -> None:
    kind: Any = NUMPY_TYPES[dtype.name]
    a = rng.integers(0, 127, 20).astype(kind)
    b = rng.integers(0, 7, 20).astype(kind)
    with np.errstate(all="ignore"):
        cases = {"and": a & b, "or": a | b, "xor": a ^ b, "shl": a << b, "shr": a >> b}
    for op, expected in cases.items():
        np.testing.assert_array_equal(elementwise(dtype, dtype, partial(binary, op), a, b), expected)
    np.testing.assert_array_equal(elementwise(dtype, dtype, lambda x, y: unary("not", x), a, b), ~a)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_are_exact_in_their_own_type(dtype: DType) -> None:
    kind: Any = NUMPY_TYPES[dtype.name]
    special = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 6e4]
    a, b = np.repeat(special, 8).astype(kind), np.tile(special, 8).astype(kind)
    with np.errstate(all="ignore"):
        cases: dict[str, tuple[Callable[[Expr, Expr], ExprLike], Any]] = {
            "add": (lambda x, y: x + y, a + b),
            "sub": (lambda x, y: x - y, a - b),
            "mul": (lambda x, y: x * y, a * b),
            "div": (lambda x, y: x / y, a / b),
            "min": (minimum, np.minimum(a, b)),
            "max": (maximum, np.maximum(a, b)),
            "neg": (lambda x, y: -x, -a),
            "abs": (lambda x, y: unary("abs", x), np.abs(a)),
            "exp": (lambda x, y: call("exp", x), np.exp(a)),
            "select": (lambda x, y: select(x < y, x, y), np.where(a < b, a, b)),
        }
    for name, (value, expected) in cases.items():
        got = elementwise(dtype, dtype, value, a, b)
        assert got.dtype == kind
        np.testing.assert_array_equal(got.view(np.uint8), expected.astype(kind).view(np.uint8), err_msg=name)


def test_bf16_is_rounded_after_every_operation() -> None:
    a, b = (round_bf16(rng.standard_normal(50).astype(np.float32)) for _ in range(2))
    got = elementwise(bf16, bf16, lambda x, y: x * y + x, a, b)
    np.testing.assert_array_equal(got, round_bf16(round_bf16(a * b) + a))
    assert (got != a * b + a).any()


def test_comparisons_and_bools() -> None:
    a, b = np.array([1, 2, 3, 3]), np.array([2, 2, 1, 3])
    for op, expected in [("lt", a < b), ("le", a <= b), ("gt", a > b), ("ge", a >= b), ("eq", a == b), ("ne", a != b)]:
        got = elementwise(i64, boolean, partial(compare, op), a, b)
        np.testing.assert_array_equal(got, expected)
    both = elementwise(i64, boolean, lambda x, y: (x < y) | unary("not", eq(x, y)) & (x > 2), a, b)
    np.testing.assert_array_equal(both, (a < b) | ~(a == b) & (a > 2))


@pytest.mark.parametrize("source", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("target", ALL_DTYPES, ids=str)
def test_casts(source: DType, target: DType) -> None:
    kind = NUMPY_TYPES[source.name]
    a = np.array([0, 1, 2, 100, 3], kind) if not source.is_bool else np.array([True, False])
    got = elementwise(source, target, lambda x, y: cast(x, target), a, a)
    np.testing.assert_array_equal(got, a.astype(NUMPY_TYPES[target.name]))


def test_a_cast_to_a_narrow_integer_wraps() -> None:
    a = np.array([300, -1, 128])
    np.testing.assert_array_equal(elementwise(i64, u8, lambda x, y: cast(x, u8), a, a), a.astype(np.uint8))
    np.testing.assert_array_equal(elementwise(i64, i8, lambda x, y: cast(x, i8), a, a), a.astype(np.int8))


N, M, K = Var("n"), Var("m"), Var("k")


def matmul_kernel() -> Kernel:
    a, b, c = Buffer("a", f32, (M, K)), Buffer("b", f32, (K, N)), Buffer("c", f32, (M, N))
    build = Builder()
    with build.loop("i", M, PARALLEL) as i, build.loop("j", N) as j:
        acc = build.allocate("acc", f32, (1,), init=0.0)
        with build.loop("k", K) as k:
            build.store(acc, 0, acc[0] + a[i, k] * b[k, j])
        build.store(c, (i, j), acc[0])
    return Kernel("matmul", (a, b, c), (c,), (M, N, K), build.body())


@settings(max_examples=15)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5), st.integers(0, 100))
def test_symbolic_sizes(m: int, n: int, k: int, seed: int) -> None:
    kernel = matmul_kernel()
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    got = interpret(kernel, dict(zip(kernel.buffers, (a, b), strict=False)), {M: m, N: n, K: k}, seed=seed)
    np.testing.assert_allclose(got[kernel.outputs[0]], a.astype(np.float64) @ b, atol=1e-5)


def test_vectors() -> None:
    x, y = Buffer("x", f32, (4, 8)), Buffer("y", f32, (9,))

    def write(b: Builder) -> None:
        row = x[ramp(0, 1, 4), 2] * widen(const(2.0, f32), 4)
        b.store(y, ramp(0, 2, 4), select(row > 0.0, row, 0.0))
        b.store(y, ramp(1, 2, 4), maximum(x[1, ramp(0, 1, 4)], x[1, ramp(4, 1, 4)]))
        b.store(y, 8, lane_reduce("sum", x[3, ramp(7, -1, 8)]))

    a = rng.standard_normal((4, 8)).astype(np.float32)
    got = interpret(make([x], y, write), {x: a})[y]
    np.testing.assert_array_equal(got[0:8:2], np.maximum(a[:, 2] * 2, 0))
    np.testing.assert_array_equal(got[1:8:2], np.maximum(a[1, :4], a[1, 4:]))
    np.testing.assert_allclose(got[8], a[3].sum(), rtol=1e-5)


@pytest.mark.parametrize(("op", "reference"), [("prod", np.prod), ("max", np.max), ("min", np.min)])
def test_lane_reductions(op: str, reference: Callable[[Any], Any]) -> None:
    x, y = Buffer("x", i32, (4,)), Buffer("y", i32, ())
    a = np.array([3, -1, 4, 2], np.int32)
    kernel = make([x], y, lambda b: b.store(y, (), lane_reduce(op, x[ramp(0, 1, 4)])))
    assert interpret(kernel, {x: a})[y] == reference(a)


def test_strides_offsets_and_layouts() -> None:
    x = Buffer("x", f32, (3, 4), strides=(1, 3), offset=2)
    y = Buffer("y", f32, (4, 3), layout=row_major(3, 4).permute(1, 0))

    def write(b: Builder) -> None:
        with b.grid(["i", "j"], (3, 4)) as (i, j):
            b.store(y, (j, i), x[i, j])

    kernel = make([x], y, write)
    a = rng.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(interpret(kernel, {x: a})[y], a.T)
    flat = np.concatenate([np.zeros(2, np.float32), a.T.ravel()])
    out = np.zeros(12, np.float32)
    interpret(kernel, {x: flat, y: out})
    np.testing.assert_array_equal(out, a.ravel())


def test_buffers_given_the_same_flat_array_alias() -> None:
    x, y = Buffer("x", f32, (4,)), Buffer("y", f32, (2, 2))
    storage = np.arange(4, dtype=np.float32)
    kernel = make([x], y, lambda b: b.store(y, (1, 1), x[0] + x[3]))
    interpret(kernel, {x: storage, y: storage})
    assert storage.tolist() == [0, 1, 2, 3]

    def twice(b: Builder) -> None:
        b.store(y, (0, 1), 5.0)
        b.store(y, (1, 1), x[1])

    double = make([x], y, twice)
    interpret(double, {x: storage, y: storage})
    assert storage.tolist() == [0, 5, 2, 5]


def test_mapped_loops_moves_and_matrix_products() -> None:
    a, c = Buffer("a", f16, (4, 6)), Buffer("c", f32, (4, 4))

    def write(b: Builder) -> None:
        tile = b.allocate("tile", f16, (6, 4))
        with b.mapped(["i", "j"], spatial(2, 2) * repeat(3, 2), index(0)) as (i, j):
            b.store(tile, (i, j), 0.0)
        for worker in range(4):
            with b.mapped(["i", "j"], spatial(2, 2) * repeat(3, 2), worker) as (i, j):
                b.store(tile, (i, j), a[j, i])
        b.fill(c, 1.0)
        b.matmul(c, a, tile)
        b.move(region(c, (0, 0), (1, 4)), region(c, (1, 0), (1, 4)))

    x = rng.standard_normal((4, 6)).astype(np.float16)
    got = interpret(make([a], c, write), {a: x})[c]
    expected = 1 + x.astype(np.float64) @ x.astype(np.float64).T
    expected[0] = expected[1]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def reverse_in_shared(meet: bool = True) -> tuple[Kernel, Buffer, Buffer]:
    """Each block of 8 threads reverses its row through shared memory."""
    x, y = Buffer("x", f32, (3, 8)), Buffer("y", f32, (3, 8))

    def write(b: Builder) -> None:
        row = b.allocate("row", f32, (8,), Scope.SHARED)
        with b.loop("twice", 2):
            b.store(row, THREAD, x[BLOCKS[0], THREAD])
            if meet:
                b.barrier()
            b.store(y, (BLOCKS[0], THREAD), row[7 - THREAD])
            b.barrier()

    return make([x], y, write, grid=(3,), threads=8), x, y


@pytest.mark.parametrize("seed", range(4))
def test_threads_synchronise_at_barriers(seed: int) -> None:
    kernel, x, y = reverse_in_shared()
    a = rng.standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_array_equal(interpret(kernel, {x: a}, seed=seed)[y], a[:, ::-1])


def test_distributed_registers() -> None:
    x, y = Buffer("x", f32, (4, 4)), Buffer("y", f32, (4, 4))
    owner = spatial(2, 2) * repeat(2, 2)

    def write(b: Builder, other: int = 0) -> None:
        tile = b.allocate("tile", f32, (4, 4), Scope.REGISTER, owner=owner)
        with b.mapped(["i", "j"], owner, THREAD) as (i, j):
            b.store(tile, (i, j), x[i, j] * 2.0)
        with b.mapped(["i", "j"], owner, THREAD) as (i, j):
            b.store(y, (i, j), tile[i, (j + other) % 4])

    a = rng.standard_normal((4, 4)).astype(np.float32)
    kernel = make([x], y, write, grid=(1,), threads=4)
    np.testing.assert_array_equal(interpret(kernel, {x: a})[y], a * 2)
    wrong = make([x], y, lambda b: write(b, 2), grid=(1,), threads=4)
    with pytest.raises(VerifyError, match="which it does not hold"):
        interpret(wrong, {x: a})


X, Y = Buffer("x", f32, (8,)), Buffer("y", f32, (8,))
ONES = np.ones(8, np.float32)


def parallel_sum(b: Builder) -> None:
    b.store(Y, 0, 0.0)
    with b.loop("i", 8, PARALLEL) as i:
        b.store(Y, 0, Y[0] + X[i])


def neighbours(b: Builder) -> None:
    with b.loop("i", 7, PARALLEL) as i:
        b.store(Y, i, X[i])
        b.store(Y, i + 1, Y[i])


def read_after(b: Builder) -> None:
    t = b.allocate("t", f32, (8,))
    with b.loop("i", 4, PARALLEL) as i:
        b.store(t, i, X[i])
    b.store(Y, 0, t[4])


def select_outside(b: Builder) -> None:
    with b.loop("i", 9) as i:
        b.store(Y, minimum(i, 7), select(i < 8, X[i], 0.0))


def use_outside_scope(b: Builder) -> None:
    with b.when(X[0] > 2.0):
        t = b.let("t", X[0] + 1.0)
    b.store(Y, 0, t)


def unallocated(b: Builder) -> None:
    b.store(Y, 0, Buffer("t", f32, (1,))[0])


def diverging(b: Builder) -> None:
    with b.when(THREAD < 3):
        b.barrier()
    b.store(Y, THREAD, 1.0)


def two_barriers(b: Builder) -> None:
    with b.when(THREAD < 3):
        b.barrier()
    with b.otherwise():
        b.barrier()
    b.store(Y, THREAD, 1.0)


def shared_race(b: Builder) -> None:
    t = b.allocate("t", f32, (8,), Scope.SHARED)
    b.store(t, THREAD // 2, X[THREAD])


def blocks_race(b: Builder) -> None:
    b.store(Y, THREAD, X[BLOCKS[0]])


def put(value: ExprLike, at: ExprLike = 0) -> Callable[[Builder], None]:
    return lambda b: b.store(Y, at, value)


GPU = {"grid": (1,), "threads": 8}
WRONG: list[tuple[str, Callable[[Builder], None], dict[str, Any], str]] = [
    ("load out of bounds", put(X[8]), {}, r"x\[8\] is out of bounds"),
    ("load below", put(X[index(-1)]), {}, r"x\[-1\] is out of bounds"),
    ("store out of bounds", put(1.0, 9), {}, r"y\[9\] is out of bounds"),
    ("lanes out of bounds", put(lane_reduce("sum", X[ramp(4, 1, 8)])), {}, "is out of bounds"),
    ("both sides of a select", select_outside, {}, r"x\[8\] is out of bounds"),
    ("index out of range", put(X[call("checked_index", index(9), index(8))]), {}, r"index in \[9, 9\]"),
    ("uninitialised", read_after, {}, r"t\[4\] is read before anything was written"),
    ("output read before it is written", put(Y[1]), {}, r"y\[1\] is read before anything was written"),
    ("output left unwritten", put(1.0), {}, r"leaves y\[1\] unwritten"),
    ("sum in parallel", parallel_sum, {}, r"race on y\[0\]"),
    ("neighbours in parallel", neighbours, {}, "race on y"),
    ("out of scope", use_outside_scope, {}, "'t' has no value here"),
    ("not allocated", unallocated, {}, "used outside the scope of its allocation"),
    ("division by zero", put(cast(cast(X[0], i64) // (cast(X[1], i64) - 1), f32)), {}, "division by zero"),
    ("tdiv of a negative", put(cast(binary("tdiv", cast(-X[0], i64), index(4)), f32)), {}, "only for a >= 0"),
    ("reduction", put(reduce("sum", [(Var("r"), 2)], X[0])), {}, "kernels reduce with loops"),
    ("unknown function", put(call("gamma", X[0])), {}, "unknown function 'gamma'"),
    ("barrier on the cpu", lambda b: b.barrier(), {}, "without threads"),
    ("barrier not reached by all", diverging, GPU, "never reaches"),
    ("two barriers", two_barriers, GPU, "waits at one barrier and"),
    ("race in shared memory", shared_race, GPU, "race on t"),
    ("race between blocks", blocks_race, {"grid": (2,), "threads": 8}, "race on y"),
    ("no such worker", lambda b: _mapped(b), GPU, "no worker"),
    ("move of unequal regions", lambda b: b.move(region(Y, (0,), (4,)), region(X, (0,), (5,))), {}, "moved"),
]


def _mapped(b: Builder) -> None:
    with b.mapped(["i"], spatial(4), THREAD) as (i,):
        b.store(Y, i, 1.0)


@pytest.mark.parametrize(("title", "write", "launch", "message"), WRONG, ids=[w[0] for w in WRONG])
def test_mistakes_are_reported(title: str, write: Any, launch: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskmapError, match=message):
        interpret(make([X], Y, write, **launch), {X: ONES})


def test_a_missing_barrier_is_seen_in_any_order() -> None:
    kernel, x, _ = reverse_in_shared(meet=False)
    for seed in range(5):
        with pytest.raises(VerifyError, match=r"race on row|read before anything was written"):
            interpret(kernel, {x: np.ones((3, 8), np.float32)}, seed=seed)


def test_an_error_names_the_statement() -> None:
    with pytest.raises(IndexOutOfRangeError) as error:
        interpret(make([X], Y, put(X[8] + 1.0)), {X: ONES})
    assert str(error.value) == (
        "taskmap: x[8] is out of bounds\n  y[0] = x[8] + 1.0\n  dimension 0 of x: f32[8] has the extent 8."
    )


def test_a_select_may_discard_uninitialised_values() -> None:
    def write(b: Builder) -> None:
        t = b.allocate("t", f32, (8,))
        with b.loop("i", 4) as i:
            b.store(t, i, X[i])
        with b.loop("i", 8) as i:
            b.store(Y, i, select(i < 4, t[i], 0.0))

    assert interpret(make([X], Y, write), {X: ONES})[Y].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_shared_subexpression_is_evaluated_once() -> None:
    e: Expr = X[0]
    for _ in range(60):
        e = (e + e) * 0.5
    kernel = make([X], Buffer("y", f32, ()), lambda b: None)
    out = kernel.outputs[0]
    b = Builder()
    b.store(out, (), e)
    assert interpret(replace(kernel, body=b.body()), {X: ONES})[out] == 1.0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "run without x"),
        ({X: np.ones(9, np.float64)}, "float64"),
        ({X: np.ones((2, 4), np.float32)}, "shape 2×4"),
        ({X: np.ones(4, np.float32)}, "shape 4"),
    ],
)
def test_wrong_inputs_are_refused(arrays: dict[Buffer, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        interpret(make([X], Y, put(1.0)), arrays)


def test_a_missing_size_is_refused() -> None:
    kernel = matmul_kernel()
    with pytest.raises(InputError, match="run without m, n, k"):
        interpret(kernel, dict.fromkeys(kernel.buffers, np.ones((1, 1), np.float32)))
