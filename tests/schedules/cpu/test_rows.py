"""Rows: softmax, norms, extrema and sums, over many shapes, layouts, types and lengths, known and symbolic."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops import arithmetic, norms, reductions, softmax
from taskmap.ir.errors import ScheduleError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import channels_last, fused, layer_norm, permuted_strides, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, Case, check, isas, run_cases, target

LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000)
_LOOSE = {"f32": 3e-5, "f16": 1e-2, "bf16": 5e-2}


def rms_norm(x: Node, count: int) -> list[Node]:
    last = x.shape[len(x.shape) - count :]
    return [norms.rms_norm(x, last, tensor(*last, dtype=x.dtype), 1e-5)[0]]


def centred(x: Node, axes: Sequence[int]) -> list[Node]:
    """A chain of two reductions with per-element and per-row outputs."""
    y = arithmetic.sub(x, reductions.mean(x, axes, True))
    top = reductions.amax(y, axes, True)
    return [arithmetic.add(arithmetic.mul(y, 2.0), top), top]


Operator = Callable[[Node, random.Random, tuple[int, ...]], list[Node]]
FLOATING: dict[str, Operator] = {
    "softmax": lambda x, c, axes: [softmax.softmax(x, axes[-1])],
    "log_softmax": lambda x, c, axes: [softmax.log_softmax(x, axes[-1])],
    "layer_norm": lambda x, c, axes: layer_norm(x, len(axes), c.random() < 0.5),
    "rms_norm": lambda x, c, axes: rms_norm(x, len(axes)),
    "mean": lambda x, c, axes: [reductions.mean(x, axes, c.random() < 0.5)],
    "var": lambda x, c, axes: list(reductions.var_mean(x, axes, 1, c.random() < 0.5)),
    "logsumexp": lambda x, c, axes: [reductions.logsumexp(x, axes, c.random() < 0.5)],
    "norm": lambda x, c, axes: [reductions.vector_norm(x, c.choice((1, 2, 3, float("inf"))), axes)],
    "centred": lambda x, c, axes: centred(x, axes),
}
ANY: dict[str, Operator] = {
    "argmax": lambda x, c, axes: [reductions.argmax(x, axes[-1], c.random() < 0.5)],
    "argmin": lambda x, c, axes: [reductions.argmin(x, c.choice((axes[-1], None)))],
    "any": lambda x, c, axes: [reductions.any_(x, axes, c.random() < 0.5)],
    "all": lambda x, c, axes: [reductions.all_(x, axes)],
    "amax": lambda x, c, axes: [reductions.amax(x, axes, c.random() < 0.5)],
    "amin": lambda x, c, axes: [reductions.amin(x, axes)],
    "sum": lambda x, c, axes: [reductions.sum_(x, axes, c.random() < 0.5)],
    "prod": lambda x, c, axes: [reductions.prod(x, axes)],
}


def random_case(seed: int, isa: str, largest: int = 20000) -> Case:
    """A random operator on rows of a random shape, some sizes symbolic, some layouts permuted."""
    chance = random.Random(seed)
    dims: dict[Var, int] = {}
    shape: list[Dim] = []
    room = largest
    for _ in range(chance.choice((1, 2, 2, 3, 3, 4))):
        size = chance.choice([n for n in LENGTHS if n <= room])
        room //= size
        symbol = Var(f"n{len(dims)}")
        if size > 1 and seed % 4 == 1 and chance.random() < 0.6:
            dims[symbol] = size
        shape.append(symbol if symbol in dims else size)
    name = chance.choice((*FLOATING, *ANY))
    dtypes: tuple[DType, ...] = (f64, f32, f32, f16, bf16)
    if name in ANY and chance.random() < 0.5:
        dtypes = (i64, i32, i16, i8, u8, boolean)
    x = tensor(*shape, dtype=chance.choice(dtypes))
    count = chance.randrange(1, len(shape) + 1)
    axes = tuple(range(len(shape) - count, len(shape)))
    if name not in ("layer_norm", "rms_norm") and chance.random() < 0.4:
        axes = tuple(sorted(chance.sample(range(len(shape)), count)))
    outputs = {**FLOATING, **ANY}[name](x, chance, axes)
    strides = {}
    for node in (x, *outputs):
        if chance.random() < 0.3:
            order = list(range(len(node.shape)))
            chance.shuffle(order)
            strides[node] = permuted_strides(node.shape, order)
    task = fused(outputs, strides=strides, name=name)
    special = name in ("amax", "amin", "argmax", "argmin", "any", "all") and seed % 3 == 0
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape], special) for b in task.inputs]
    if name == "prod":
        arrays = [np.sign(a) if b.dtype.is_float else a for a, b in zip(arrays, task.inputs, strict=True)]
    return Case(task, arrays, dims, isa)


def schedulable(cases: Sequence[Case]) -> list[Case]:
    """The cases that a schedule takes whole; refused ones are split, and tested as their parts."""
    taken = []
    for case in cases:
        try:
            schedule(case.task, target(case.isa))
        except ScheduleError:
            continue
        taken.append(case)
    assert len(taken) > 0.8 * len(cases)
    return taken


def test_random_rows_on_the_machine() -> None:
    check(schedulable([random_case(seed, isas()[seed % len(isas())]) for seed in range(90)]), _LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_rows_in_the_interpreter(isa: str) -> None:
    cases = [random_case(500 + seed, isa, 120) for seed in range(ISAS.index(isa), 45, 3)]
    for case in schedulable(cases):
        check_every_pass(case, {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2})


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_of_a_row(length: int) -> None:
    rng = np.random.default_rng(length)
    x = rng.standard_normal((5, length)).astype(np.float32)
    node = tensor(5, length)
    operators = [softmax.softmax(node, 1), reductions.argmax(node, 1), reductions.sum_(node, 1)]
    check([Case(fused([y]), [x], isa=isas()[n % len(isas())]) for n, y in enumerate(operators)])


def test_one_kernel_serves_all_lengths_and_counts() -> None:
    rng = np.random.default_rng(0)
    n, m = Var("n"), Var("m")
    x = tensor(n, m)
    cases = []
    for y in (softmax.softmax(x, 1), layer_norm(x, 1)[0], reductions.argmin(x, 1), reductions.mean(x, 1)):
        task = fused([y])
        for rows, length in ((1, 1), (3, 2), (4, 15), (2, 17), (7, 100), (1, 70000), (300, 33)):
            arrays = [rng.standard_normal([{n: rows, m: length}[d] for d in b.shape]) for b in task.inputs]  # type: ignore[index]  # all sizes are symbolic
            cases.append(Case(task, [a.astype(np.float32) for a in arrays], {n: rows, m: length}))
    check(cases)


def test_group_norm_and_rows_of_channels() -> None:
    rng = np.random.default_rng(0)
    cases = []
    for shape, groups in (((2, 6, 5, 3), 3), ((1, 8, 16, 4), 2)):
        x = tensor(*shape)
        w, b = tensor(shape[1]), tensor(shape[1])
        outputs = norms.group_norm(x, w, b, groups, 1e-5)
        arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, (shape[1],), (shape[1],))]
        cases.append(Case(fused(outputs, inputs=[x, w, b]), arrays))
        cases.append(Case(fused(outputs[:1], inputs=[x, w, b]), arrays, isa=isas()[-1]))
        soft = softmax.softmax(x, 1)  # the channels are contiguous
        task = fused([soft], strides={x: channels_last(*shape), soft: channels_last(*shape)})
        assert schedule(task, target()).note.startswith("cpu.rows")
        cases.append(Case(task, arrays[:1]))
    check(cases)


def test_long_rows_are_exact_and_shared_out() -> None:
    rng = np.random.default_rng(0)
    length = 1_000_000
    x = rng.random((1, length)).astype(np.float32)  # all positive: rounding errors do not cancel
    node = tensor(1, length)
    tasks = [fused([y]) for y in (reductions.sum_(node), softmax.softmax(node, 1), reductions.argmax(node, 1))]
    total, soft, place = (r[0] for r in run_cases([Case(t, [x]) for t in tasks]))
    exact = x.astype(np.float64)
    assert abs(total - exact.sum()) < 1e-6 * exact.sum()
    powers = np.exp(exact - exact.max())
    np.testing.assert_allclose(soft, powers / powers.sum(), rtol=3e-6)
    assert place == x.argmax()
    again = [r[0] for r in run_cases([Case(t, [x]) for t in tasks])]
    assert again[0] == total  # the same bits, for any assignment of parts to cores
    np.testing.assert_array_equal(again[1], soft)


def test_long_sums_in_the_rule_are_exact() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((3, 400, 300, 20)).astype(np.float32)
    node = tensor(*x.shape)
    cases = [Case(fused([reductions.sum_(node, (0, 1, 2))]), [x])]
    ((got,),) = run_cases(cases)
    np.testing.assert_allclose(got, x.sum((0, 1, 2), dtype=np.float64), rtol=2e-6)


def refused(task: Task) -> str:
    with pytest.raises(ScheduleError) as error:
        schedule(task, target())
    return str(error.value)


def test_what_is_no_row_is_refused() -> None:
    x = tensor(40, 30)
    along_columns = softmax.softmax(x, 0)
    assert "recomputed at each" in refused(fused([along_columns]))
    assert "another number of elements" in refused(fused([arithmetic.add(x, 1.0), reductions.sum_(x, 0)]))
    total = reductions.sum_(x, 1, True)
    shifted = tensor(40, 1)
    assert schedule(fused([arithmetic.add(total, shifted)]), target())
