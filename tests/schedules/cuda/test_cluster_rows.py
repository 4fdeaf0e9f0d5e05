"""Rows divided among the blocks of a cluster: the same right bits in every order of threads; and when they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops import norms, reductions, softmax
from taskmap.ir.errors import ScheduleError, SimulationError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Kernel, Var
from taskmap.ir.target import GpuTarget, cuda_target
from taskmap.ir.types import f16, f32
from taskmap.schedules import schedule
from taskmap.schedules.common.row_domain import find_contiguous_rows
from taskmap.schedules.cuda.rows.config import RowConfig
from taskmap.schedules.cuda.rows.template import schedule_rows
from tests.schedules.cuda_running import cuda, simulated, source_of
from tests.schedules.graph_tasks import fused, layer_norm, tensor
from tests.schedules.running import TOLERANCE, Case, compare_outputs

ISA = "sm_90a"
LIMITS = {**TOLERANCE, "f32": 1e-4, "f16": 1e-2}
OPERATORS: dict[str, Callable[[Node], Sequence[Node]]] = {
    "softmax": lambda x: [softmax.softmax(x, 1)],
    "layer norm and its statistics": lambda x: layer_norm(x, 1, statistics=True),
    "argmax and log-softmax": lambda x: [reductions.argmax(x, 1), softmax.log_softmax(x, 1)],
}


def case_of(nodes: Sequence[Node]) -> Case:
    task = fused(nodes)
    rng = np.random.default_rng(0)
    kinds = {"f16": np.float16, "f32": np.float32}
    drawn = [rng.standard_normal([size_of(d, {}) for d in b.shape]).astype(kinds[b.dtype.name]) for b in task.inputs]
    return Case(task, drawn)


def by(config: RowConfig, case: Case) -> Kernel:
    rows = find_contiguous_rows(case.task)
    assert rows is not None
    return schedule_rows(case.task, rows, cuda(ISA), config)


def check(case: Case, kernel: Kernel) -> None:
    """In three orders of threads."""
    source = source_of(kernel, ISA)
    results = [simulated(case, kernel, source, seed) for seed in (0, 1, 7)]
    compare_outputs(case, results[0], LIMITS)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(("shape", "config"), [
    ((3, 24), RowConfig(32, 1, 1, parts=8, cluster=True)),  # seven blocks have nothing
    ((2, 1003), RowConfig(64, 1, 2, parts=8, cluster=True)),  # the last has less than the others
    ((2, 1024), RowConfig(64, 4, 1, parts=4, cluster=True)),  # all have the same
    ((2, 1003), RowConfig(32, 1, 0, parts=2, cluster=True)),  # walked again in every pass
], ids=str)  # fmt: skip
def test_blocks_of_a_cluster_share_a_row(name: str, shape: tuple[int, int], config: RowConfig) -> None:
    case = case_of(OPERATORS[name](tensor(*shape)))
    kernel = by(config, case)
    assert kernel.launch is not None
    assert kernel.launch.cluster == (config.parts,)
    assert kernel.own == ()  # no memory but the blocks' own
    check(case, kernel)


def test_a_row_is_read_once() -> None:
    case = case_of([softmax.softmax(tensor(2, 1003), 1)])
    (loads,) = {source_of(by(c, case), ISA).text.count(" = in0[") for c in (
        RowConfig(64, 1, 2, parts=8, cluster=True), RowConfig(256, 1, 4),
    )}  # fmt: skip
    assert loads == 1


def test_a_block_does_not_leave_while_others_read_its_results() -> None:
    """Without the last barrier the simulator reports it."""
    case = case_of([softmax.softmax(tensor(1, 200), 1)])
    kernel = by(RowConfig(32, 1, 2, parts=4, cluster=True), case)
    source = source_of(kernel, ISA)
    head, found, tail = source.text.rpartition("  tm_cluster_arrive_relaxed();\n  tm_cluster_wait();\n")
    assert found
    with pytest.raises(SimulationError, match="does in the simulator"):
        simulated(case, kernel, replace(source, text=head + tail))


def test_what_one_block_cannot_hold_is_shared_by_default() -> None:
    """The widest row that a test of this size may have, on a GPU of two multiprocessors."""
    case = case_of([softmax.softmax(tensor(1, 20_001, dtype=f16), 1)])
    kernel = schedule(case.task, cuda(ISA))
    assert "slots=10, registers, cluster=2" in kernel.note
    check(case, kernel)


def note(nodes: Sequence[Node], target: GpuTarget) -> str:
    return schedule(fused(nodes), target).note.splitlines()[0]


def test_clusters_share_only_few_and_wide_rows_that_are_walked_again() -> None:
    gpu = cuda_target(ISA)

    def probabilities(rows: Dim, length: Dim, target: GpuTarget = gpu) -> str:
        return note([softmax.softmax(tensor(rows, length, dtype=f16), 1)], target)

    assert "team=1024, lanes=1, slots=7, registers, cluster=8" in probabilities(8, 50257)
    assert "lanes=8, slots=1, registers, cluster=8" in probabilities(16, 50256)
    assert "cluster=4" in probabilities(32, 50257)
    assert "cluster=2" in probabilities(66, 50257)
    assert "slots=0, memory, cluster=8" in probabilities(1, 1_000_003)
    wide = tensor(2, 640, 64, 64, dtype=f16)
    w, b = tensor(640, dtype=f16), tensor(640, dtype=f16)
    assert "cluster=2" in note(norms.group_norm(wide, w, b, 32, 1e-5)[:1], gpu)
    for other in (
        probabilities(67, 50257), probabilities(8, 4096), probabilities(8, 16384), probabilities(Var("n"), 50257),
        probabilities(8, Var("n")), probabilities(8, 50257, cuda_target("sm_80")),
        note([reductions.sum_(tensor(8, 50257), 1)], gpu), note([softmax.softmax(tensor(50257, 8, dtype=f32), 0)], gpu),
    ):  # fmt: skip
        assert "cluster" not in other


@pytest.mark.parametrize(("team", "parts"), [(64, 3), (16, 8)])
def test_clusters_that_cannot_exchange_are_refused(team: int, parts: int) -> None:
    case = case_of([softmax.softmax(tensor(2, 896), 1)])
    with pytest.raises(ScheduleError, match=r"(?s)cannot share a row in a cluster.*whole warps"):
        by(RowConfig(team, 1, 7, parts=parts, cluster=True), case)
