"""Element-wise work, one property at a time: truth, wrapping, division, NaN, constants, casts, indices, sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.graph.ops import arithmetic, pooling, rearrange, reductions, views
from taskmap.graph.ops.convolution import spread
from taskmap.ir.analysis.cost import operations
from taskmap.ir.construct import (
    binary,
    call,
    cast,
    compare,
    const,
    eq,
    index,
    maximum,
    minimum,
    select,
    static_size,
    unary,
)
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import ALL_DTYPES, DType, boolean, compute_type, f32, f64, i8, i16, i32, i64, u8
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.running import Array, Case, check, expected, isas, run_cases, target

SIZE = 37  # vectors and a remainder for every width
FLOATS = [t for t in ALL_DTYPES if t.is_float]
INTEGERS = (i64, i32, i16, i8, u8)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def task_of(inputs: Sequence[Buffer], bodies: Sequence[Callable[..., Expr]], shape: Sequence[Dim] = (SIZE,)) -> Task:
    """A task with an output for each of ``bodies``, functions of the inputs' elements."""
    stages = []
    for number, body in enumerate(bodies):
        axes = tuple(Var(f"i{d}") for d in range(len(shape)))
        value = body(*(x[axes] for x in inputs))
        stages.append(Stage(Buffer(f"y{number}", value.dtype, tuple(shape)), axes, value, f"y{number}"))
    return Task("elementwise", tuple(inputs), tuple(stages), tuple(s.out for s in stages))


def vectors(*dtypes: DType) -> list[Buffer]:
    return [Buffer(f"x{n}", t, (SIZE,)) for n, t in enumerate(dtypes)]


def on_all(task: Task, arrays: Sequence[Array]) -> list[Case]:
    return [Case(task, arrays, isa=isa) for isa in isas()]


def test_truth_of_bools() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, SIZE)) < 0.5
    x, y = rng.integers(-2, 2, (2, SIZE))
    inputs = vectors(boolean, boolean, f64, i8)
    bodies: list[Callable[..., Expr]] = [lambda p, q, *_: unary("not", p)]
    for op in ("and", "or", "xor", "max", "min"):
        bodies.append(lambda p, q, u, v, op=op: binary(op, p, q))
        bodies.append(lambda p, q, u, v, op=op: binary(op, u < 0.0, v < 1))
    for op in COMPARISONS:
        bodies.append(lambda p, q, u, v, op=op: compare(op, p, q))
        bodies.append(lambda p, q, u, v, op=op: compare(op, u < 0.0, v < 1))
    bodies += [lambda p, q, u, v: select(u < 0.0, p, v < 1), lambda p, q, u, v: select(p, u, cast(v, f64))]
    check(on_all(task_of(inputs, bodies), [a, b, x.astype(np.float64), y.astype(np.int8)]))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(dtype: DType) -> None:
    low, high = (0, 255) if dtype == u8 else (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    edge = [low, low + 1, -1 if low else 1, 0, 1, 2, 3, high // 3, high - 1, high]
    x, y = (np.asarray(a).ravel()[:SIZE] for a in np.meshgrid(edge, edge))
    kind = np.dtype(f"{'u' if dtype == u8 else ''}int{dtype.bits}")
    wide = f32 if dtype == i64 else i64
    bodies: list[Callable[..., Expr]] = [lambda a, b: unary("neg", a), lambda a, b: unary("abs", a)]
    bodies += [lambda a, b: unary("not", a), lambda a, b: compare("lt", unary("neg", a), b)]
    for op in ("add", "sub", "mul", "min", "max", "and", "or", "xor"):
        bodies.append(lambda a, b, op=op: binary(op, a, b))
        bodies.append(lambda a, b, op=op: cast(binary(op, a, b), wide))
    if dtype != i64:  # index arithmetic is i64 and does not overflow, so a comparison of sums may be decided as if
        bodies.append(lambda a, b: compare("gt", a + b, a))
    check(on_all(task_of(vectors(dtype, dtype), bodies), [x.astype(kind), y.astype(kind)]))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_quotients_round_down_and_division_by_zero_ends_well(dtype: DType) -> None:
    kind = np.dtype(f"{'u' if dtype == u8 else ''}int{dtype.bits}")
    x = np.resize(np.array([7, -7, 100, -100, 0, 1, -1, 127, -128]), SIZE).astype(kind)
    y = np.resize(np.array([2, -2, 3, -3, 16, -16, 7, -7]), SIZE).astype(kind)
    bodies: list[Callable[..., Expr]] = [
        lambda a, b: binary("floordiv", a, b), lambda a, b: binary("mod", a, b),
        lambda a, b: binary("floordiv", a, const(16, dtype)), lambda a, b: binary("mod", a, const(7, dtype)),
    ]  # fmt: skip
    task = task_of(vectors(dtype, dtype), bodies)
    check(on_all(task, [x, y]))
    run_cases(on_all(task, [x, np.zeros_like(y)]))  # torch raises; a kernel cannot, but must not crash the process


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_infinity_and_signed_zero(dtype: DType) -> None:
    edge = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5]
    kind = {"f64": np.float64, "f16": np.float16}.get(dtype.name, np.float32)
    x, y = (np.resize(a.ravel(), SIZE + 12).astype(kind)[:SIZE] for a in np.meshgrid(edge, edge))
    bodies: list[Callable[..., Expr]] = [maximum, minimum, lambda a, b: unary("neg", a), lambda a, b: unary("abs", a)]
    bodies += [lambda a, b, op=op: compare(op, a, b) for op in COMPARISONS]
    bodies += [lambda a, b, op=op: binary(op, a, b) for op in ("add", "sub", "mul", "div")]
    bodies += [lambda a, b: select(a < b, a, b), lambda a, b: cast(a, boolean), lambda a, b: cast(a < b, dtype)]
    bodies += [lambda a, b, p=p: call(p, a, dtype=boolean) for p in ("isnan", "isinf", "signbit")]
    cases = on_all(task_of(vectors(dtype, dtype), bodies), [x, y])
    for case, results in zip(cases, run_cases(cases), strict=True):
        for got, want in zip(results, expected(case.task, case.arrays), strict=True):
            np.testing.assert_array_equal(got, want)
        for got, want in list(zip(results, expected(case.task, case.arrays), strict=True))[2:]:
            if want.dtype.kind == "f":  # the larger of two zeros is unspecified
                whole = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(got)[whole], np.signbit(want)[whole])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_constants_keep_their_value(dtype: DType) -> None:
    values = (1.5, -2.0, 0.1, -0.0, 3e4, 1e-3, float("inf"), float("-inf"), float("nan"))
    p = np.arange(SIZE) % 3 == 0
    kind = {"f64": np.float64, "f16": np.float16}.get(dtype.name, np.float32)
    bodies: list[Callable[..., Expr]] = [lambda m, a, v=v: select(m, a, const(v, dtype)) for v in values]
    bodies += [lambda m, a: select(m, const(1.0, dtype), const(0.5, dtype))]
    check(
        on_all(task_of(vectors(boolean, dtype), bodies), [p, np.full(SIZE, 2, kind)]), {"f16": 0, "bf16": 0, "f64": 0}
    )


@pytest.mark.parametrize("source", ALL_DTYPES, ids=str)
def test_casts(source: DType) -> None:
    x = np.arange(SIZE) % 100 - (0 if source == u8 else 50)
    given = x != 3 if source.is_bool else x + (0.75 if source.is_float else 0)
    kind = {"bf16": np.float32}.get(source.name) or np.dtype({"f": "float", "i": "int", "u": "uint", "b": "bool"}[source.kind] + ("" if source.is_bool else str(source.bits)))  # fmt: skip  # noqa: E501
    task = task_of(vectors(source), [lambda a, t=t: cast(a, t) for t in ALL_DTYPES])
    if source.is_float:  # a negative float as an unsigned integer is unspecified
        given = np.abs(given)
    check(on_all(task, [given.astype(kind)]), {"f16": 0, "bf16": 0})


def gather() -> Task:
    x, at, y = Buffer("x", f32, (10, 5)), Buffer("at", i64, (SIZE,)), Buffer("y", f32, (SIZE, 5))
    i, j = Var("i"), Var("j")
    body = x[call("checked_index", at[i], index(10)), j]
    return Task("gather", (x, at), (Stage(y, (i, j), body, "gather"),), (y,))


def test_an_index_counts_from_the_end_and_is_checked() -> None:
    x = np.random.default_rng(0).standard_normal((10, 5)).astype(np.float32)
    at = np.arange(SIZE) % 20 - 10
    task = gather()
    good, *wrong = (Case(task, [x, a]) for a in (at, *(np.where(np.arange(SIZE) == k, v, at) for k, v in
                                                      ((0, 10), (SIZE - 1, -11), (20, 1 << 40)))))  # fmt: skip
    np.testing.assert_array_equal(run_cases([good])[0][0], x[at])
    for case in wrong:
        with pytest.raises(IndexError):
            run_cases([case])


def test_outputs_without_dimensions_and_tensors_without_neighbours() -> None:
    cases = []
    for shape in ((), (1,), (1, 1, 1), (2, 1), (1, 31), (13,)):
        x, one = tensor(*shape), tensor()
        y = arithmetic.mul(arithmetic.add(x, one), 3.0)
        task = fused([y, arithmetic.sub(y, x)])
        arrays = [np.full([static_size(n) or 0 for n in b.shape], 2.5, np.float32) for b in task.inputs]
        cases += on_all(task, arrays)
    check(cases)


def test_one_kernel_serves_all_sizes() -> None:
    n, m = Var("n"), Var("m")
    x, row, column = Buffer("x", f32, (n, m)), Buffer("row", f32, (m,)), Buffer("column", f32, (n, 1))
    i, j = Var("i"), Var("j")
    y = Buffer("y", f32, (m, n))
    body = x[j, i] * row[i] + select(eq(i, index(m) - 1), column[j, 0], 0.0)
    task = Task("sizes", (x, row, column), (Stage(y, (i, j), body, "y"),), (y,), (n, m))
    rng = np.random.default_rng(0)
    cases = []
    for isa in isas():
        for a, b in ((1, 1), (1, 17), (16, 1), (7, 33), (64, 64), (100, 3), (129, 65)):
            arrays = [rng.standard_normal(s, np.float32) for s in ((a, b), (b,), (a, 1))]
            cases.append(Case(task, arrays, {n: a, m: b}, isa))
    check(cases)


def test_windows_and_leading_axes() -> None:
    rng = np.random.default_rng(0)
    cases = []
    for shape in ((1, 5, 9, 9), (2, 20, 7, 6)):
        x = tensor(*shape)
        outputs = [
            pooling.max_pool(x, 2, [3, 3], [2, 2], [1, 1])[0],
            pooling.avg_pool(x, 2, [2, 3], [1, 2], [1, 0]),
            reductions.sum_(x, (0,)), reductions.amax(x, (1,), True), reductions.sum_(x, (0, 2)),
        ]  # fmt: skip
        array = rng.standard_normal(shape).astype(np.float32)
        for number, y in enumerate(outputs):
            last = {x: channels_last(*shape), **({y: channels_last(*y.shape)} if len(y.shape) == 4 else {})}
            for strides in ({}, last):
                cases.append(Case(fused([y], strides=strides), [array], isa=isas()[number % len(isas())]))
    check(cases)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("counted", [False, True])
def test_averages_over_padded_windows(isa: str, counted: bool) -> None:
    """Lanes run along channels, so taps are inside for all lanes or for none: masks have the width of the elements, and
    are tested only where a window reaches over an edge."""
    cases = []
    for shape, size in (((1, 17, 7, 11), 3), ((2, 32, 5, 2), 3), ((1, 16, 13, 13), 5)):
        x = tensor(*shape)
        y = pooling.avg_pool(x, 2, [size, size], [1, 1], [size // 2], count_include_pad=counted)
        strides = {n: channels_last(*shape) for n in (x, y)}
        cases.append(
            Case(fused([y], strides=strides), [np.random.default_rng(0).standard_normal(shape, np.float32)], isa=isa)
        )
    check(cases)
    machine = target(isa)
    text = generate(lower(schedule(cases[-1].task, machine), target=machine), machine.vector_bytes).text
    assert "m64x" not in text
    inside, _, edge = text.partition("else")
    assert "select" not in inside
    assert edge.count("select") == 1


def test_a_window_larger_than_the_image_sums_the_image() -> None:
    # EfficientNet's last pool has a window of 1280 x 1280 over 7 x 7 pixels.
    x = tensor(1, 40, 7, 6)
    y = pooling.avg_pool(x, 2, [1280], ceil_mode=True)
    task = fused([y])
    assert operations(task) <= 40 * (7 * 6 + 1)
    check([Case(task, [np.random.default_rng(0).standard_normal((1, 40, 7, 6)).astype(np.float32)])])


@pytest.mark.parametrize("isa", isas())
def test_flattened_rows_are_no_gather(isa: str) -> None:
    """Windows of an image as columns: an address is linear along a row of windows, not along all of them."""
    rng, cases = np.random.default_rng(0), []
    for shape, size, padding in (((1, 3, 11, 21), 3, 1), ((2, 2, 23, 17), (2, 3), (0, 1)), ((5, 19, 67), 3, (2, 0))):
        x = tensor(*shape)
        y = rearrange.columns_of_image(x, spread(size, 2), [1], spread(padding, 2), [1])
        cases.append(Case(fused([y]), [rng.standard_normal(shape, np.float32)], isa=isa))
    check(cases)
    machine = target(isa)
    text = generate(lower(schedule(cases[-1].task, machine), target=machine), machine.vector_bytes).text
    assert "floor_div" not in text
    assert "tm_remainder" not in text


@pytest.mark.parametrize("columns", [67, 5])
def test_positions_that_are_values_are_counted_not_divided(columns: int) -> None:
    """A comparison of the row with the column: rows that fill vectors have a loop of their own."""
    cases = []
    for isa in isas():
        x = Buffer("x", f32, (19, columns))
        i, j = Var("i"), Var("j")
        value = select(compare("le", j - i, 2), x[i, j], const(0.0, f32)) + cast(j, f32)
        y = Buffer("y", f32, (19, columns))
        task = Task("tril", (x,), (Stage(y, (i, j), value, "y"),), (y,))
        machine = target(isa)
        text = generate(lower(schedule(task, machine), target=machine), machine.vector_bytes).text
        if columns >= machine.lanes(4):
            assert "tm_floor_div_i64" not in text
            assert "tm_remainder_i64" not in text
        cases.append(Case(task, [np.arange(19 * columns, dtype=np.float32).reshape(19, columns)], isa=isa))
    check(cases)


@pytest.mark.parametrize("divisor", [1, 3, 15, 16, 17, 1000])
def test_quotients_of_neighbours(divisor: int) -> None:
    """Whole and rest of ramps of positive and negative numbers, by a constant smaller and larger than a vector."""
    cases = []
    for isa in isas():
        i = Var("i")
        y, z = Buffer("y", i64, (101,)), Buffer("z", i64, (101,))
        place = i * 3 - 50
        stages = (Stage(y, (i,), place // divisor, "y"), Stage(z, (i,), place % divisor, "z"))
        cases.append(Case(Task("parts", (), stages, (y, z)), [], isa=isa))
    check(cases)


def test_large_transposes_go_in_tiles() -> None:
    rng = np.random.default_rng(0)
    cases = []
    n = Var("n")
    for shape, order in (((70, 90), (1, 0)), ((2, 24, 9, 11), (0, 2, 3, 1)), ((2, 9, 11, 24), (0, 3, 1, 2)),
                         ((64, n), (1, 0))):  # fmt: skip
        x = tensor(*shape)
        other = tensor(*(shape[d] for d in order))
        y = arithmetic.add(views.permute(x, order), other)
        task = fused([y])
        assert schedule(task, target()).note.startswith("cpu.transpose")
        sizes = [100 if isinstance(s, Var) else int(s) for s in shape]
        arrays = [rng.standard_normal(s).astype(np.float32) for s in (sizes, [sizes[d] for d in order])]
        cases += [Case(task, arrays, {n: 100} if n in shape else {}, isa) for isa in isas()]
    check(cases)


def test_half_types_round_after_every_operator() -> None:
    rng = np.random.default_rng(0)
    for dtype in FLOATS[2:]:
        x, y = vectors(dtype, dtype)
        i, k = Var("i"), Var("k")
        t, z = Buffer("t", dtype, (SIZE,)), Buffer("z", dtype, (SIZE,))
        wide = compute_type(dtype)
        first = cast(cast(x[i], wide) + cast(y[i], wide), dtype)
        second = cast(cast(t[k], wide) - cast(x[k], wide), dtype)
        task = Task("halves", (x, y), (Stage(t, (i,), first, "add"), Stage(z, (k,), second, "sub")), (z,))
        arrays = [rng.standard_normal(SIZE).astype(np.float16 if dtype.name == "f16" else np.float32) for _ in range(2)]
        check(on_all(task, arrays), {"f16": 0, "bf16": 0})
