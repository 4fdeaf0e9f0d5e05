"""Stages of a strategy in groups of a model: softmax of rows with a prologue and an epilogue, sums, near misses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.strategies.softmax_rows import softmax_rows
from taskmap.decompose import CORE, REGISTER, WARP, Reduce, Strategy, Task, dim, reduced, stage, tensor
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic, reductions
from taskmap.graph.ops import softmax as softmax_ops
from taskmap.ir.decompose.stage_spec import StageSpec
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Kernel, Var
from taskmap.ir.types import f16, f32
from taskmap.schedules.strategies.offer import OfferedStrategy
from taskmap.schedules.strategies.stages import find_stages
from tests.schedules.cuda.test_matmul import LOOSE, case_of
from tests.schedules.cuda_running import cuda, simulated, source_of
from tests.schedules.graph_tasks import fused
from tests.schedules.graph_tasks import tensor as input_of
from tests.schedules.running import Case, call_kernel, compare_outputs, compiled, host_isa, target
from tests.schedules.strategies.test_offer import plain

ROWS = {"cpu": softmax_rows(dim("m"), 40, CORE), "cuda": softmax_rows(dim("m"), 40, WARP)}


def check(tree: Strategy, case: Case, where: str) -> Kernel:
    """The kernel, after its results matched the definition."""
    kernel = OfferedStrategy("rows", tree).kernel(case.task, target() if where == "cpu" else cuda())
    shell = plain(kernel, case.task)
    if where == "cuda":
        for seed in (0, 1):
            compare_outputs(case, simulated(case, shell, source_of(kernel), seed), LOOSE)
    else:
        ((source, address),) = compiled([(kernel, host_isa())])
        compare_outputs(case, call_kernel(shell, source, address, case.arrays, case.dims), LOOSE)
    return kernel


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(5, 40), (2, 3, 40), (1, 40)], ids=str)
def test_softmax_of_rows(where: str, shape: tuple[int, ...]) -> None:
    check(ROWS[where], case_of(fused([softmax_ops.softmax(input_of(*shape), -1)])), where)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_what_comes_before_and_after_is_fused(where: str) -> None:
    x = arithmetic.add(arithmetic.mul(input_of(2, 3, 40), 0.5), input_of(40))
    y = arithmetic.add(activations.relu(softmax_ops.softmax(x, -1)), input_of(2, 3, 40))
    check(ROWS[where], case_of(fused([arithmetic.mul(y, 2.0), y])), where)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_rows_known_later(where: str) -> None:
    m = Var("m")
    case = case_of(fused([arithmetic.mul(softmax_ops.softmax(input_of(m, 40), -1), 2.0)]), {m: 7})
    check(ROWS[where], case, where)


def sums(n: int) -> Strategy:
    x = tensor("x", f32[dim("m"), n])
    total = stage("total", (x.shape[0],), lambda i: reduced("sum", n, lambda k: x[i, k]))
    return Reduce(Task.of("sums", total)).tile(1).to(CORE).accumulate_in(REGISTER).split(1).done()


def test_sums_of_rows() -> None:
    y = reductions.sum_(arithmetic.mul(input_of(6, 40), 3.0), [1], keepdim=False)
    check(sums(40), case_of(fused([activations.relu(y)])), "cpu")


def _others() -> dict[str, tuple[Callable[[], list[Node]], str | None]]:
    return {
        "another size": (
            lambda: [softmax_ops.softmax(input_of(5, 24), -1)],
            "it has a size of 40, and the group's is 24.",
        ),
        "another type": (lambda: [softmax_ops.softmax(input_of(5, 40, dtype=f16), -1)], None),
        "logarithms": (lambda: [softmax_ops.log_softmax(input_of(5, 40), -1)], None),
        "columns": (lambda: [softmax_ops.softmax(input_of(40, 5), 0)], None),
        "no reduction": (lambda: [activations.relu(input_of(5, 40))], None),
    }


@pytest.mark.parametrize("name", list(_others()))
def test_stages_that_are_others(name: str) -> None:
    make, why = _others()[name]
    spec = ROWS["cpu"].root
    assert isinstance(spec, StageSpec)
    task = fused(make())
    assert find_stages(task, spec) == why
    with pytest.raises(ScheduleError) as refused:
        OfferedStrategy("rows", ROWS["cpu"]).kernel(task, target())
    assert refused.value.why == (why or "its stages are not those of the group.")


def test_another_target() -> None:
    with pytest.raises(ScheduleError, match="it is for cores, and the target is"):
        OfferedStrategy("rows", ROWS["cpu"]).kernel(fused([softmax_ops.softmax(input_of(5, 40), -1)]), cuda())
