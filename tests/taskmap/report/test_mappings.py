"""The task mappings that a report draws are those of the kernel."""

from __future__ import annotations

import pytest
import torch

import taskmap
from taskmap.compile.session import Compilation
from taskmap.graph.fusion.planning import Group
from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.analysis.cost import known_size
from taskmap.ir.analysis.key import task_key
from taskmap.ir.nodes import Allocate, MappedFor
from taskmap.ir.target import cpu_target, gpu_named
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_stmts
from taskmap.report.kernels import with_kernels
from taskmap.report.mappings import pictures
from taskmap.schedules import Choice, schedule, scheduled

CPU = cpu_target("avx2", 4)


@pytest.fixture(scope="module")
def product() -> Task:
    """A product of 40×24 and 24×48 with an addition after it."""
    seen: list[Task] = []

    def look(*args: object, **kwargs: object) -> object:
        recorded = args[1]
        assert isinstance(recorded, list)
        (compilation,) = [r.graph for r in recorded if isinstance(r.graph, Compilation)]
        seen.extend(step.task for step in compilation.plan.steps if isinstance(step, Group))
        return with_kernels(*args, **kwargs)  # type: ignore[arg-type]  # as it was called

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr("taskmap.report.explain.with_kernels", look)
        taskmap.explain(lambda x, y, z: x @ y + z, torch.ones(40, 24), torch.ones(24, 48), torch.ones(40, 48))
    (task,) = seen
    assert task_key(task)
    return task


def test_loops_and_tiles_of_a_cpu(product: Task) -> None:
    found = pictures(product, None, CPU, scheduled(product, CPU).choice, {}, 4)
    (sums,) = (
        s for s in walk_stmts(schedule(product, CPU).body) if isinstance(s, Allocate) and s.buffer.name == "total"
    )
    rows, columns = (known_size(size, {}) for size in sums.buffer.shape)
    assert {p.mapping for p in found if "register tile" in p.what} == {repr(repeat(rows, columns))}
    tile = next(p for p in found if "register tile" in p.what)
    assert tile.drawing is not None
    hues = [cell.hue for row in tile.drawing.grids[0].cells for cell in row]
    assert hues[:8] == [0] * 8, "eight f32 in a register of AVX2"
    loops = [p for p in found if p.what.startswith("the parallel loop")]
    for loop in loops:
        assert loop.drawing is not None
        threads = [cell.hue for cell in loop.drawing.grids[0].cells[0] if cell.hue is not None]
        assert threads == sorted(threads), "neighbours in blocks, as OpenMP's static schedule has them"


def test_mappings_of_a_gpu(product: Task) -> None:
    gpu = gpu_named("A100")
    made = scheduled(product, gpu)
    found = pictures(product, None, gpu, made.choice, {}, 1)
    mapped = {repr(s.mapping) for s in walk_stmts(made.kernel.body) if isinstance(s, MappedFor)}
    assert mapped
    assert {p.mapping for p in found if p.what.startswith("who does each task")} <= mapped
    assert all(p.drawing is not None and p.drawing.grids for p in found)


def test_a_kernel_that_would_be_scheduled_otherwise_has_no_pictures(product: Task) -> None:
    assert pictures(product, None, CPU, Choice("cpu.rows"), {}, 4) == ()
    assert pictures(product, None, CPU, Choice("cpu.matmul", "of another day"), {}, 4) == ()
