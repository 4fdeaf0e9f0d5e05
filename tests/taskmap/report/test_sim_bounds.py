"""The simulator counts a compiled model's kernels, or says why not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

import taskmap
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.target import Target, gpu_named
from taskmap.report.presentation import Report
from taskmap.report.records import SimulatedBound
from taskmap.report.sim_bounds import Kernel, simulated_bounds

H100 = gpu_named("H100")
KERNELS = "taskmap.report.kernels.simulated_bounds"


def scaled_sum(x: Tensor) -> Tensor:
    return (x * 2 + 1).sum(-1)


def explained() -> Report:
    with torch.no_grad():
        return taskmap.explain(scaled_sum, torch.randn(64, 96), options={"target": "cuda-sim", "gpu": "H100"})


def test_a_report_for_the_simulator_has_the_bounds_of_its_kernels() -> None:
    report = explained()
    assert report.simulated
    for group in report.groups:
        bound = report.simulated_bound(group)
        assert bound is not None
        assert bound.gpu == "H100"
        assert bound.seconds == max(seconds for _, seconds in bound.resources)
        assert dict(bound.resources)["DRAM"] * 3350e9 == pytest.approx(group.work.bytes)
    assert "counted   at least " in str(report)
    assert "on H100, bound by " in report.html()
    assert all(k["simulated"]["seconds"] > 0 for k in report.to_dict()["kernels"])


def test_what_takes_too_long_or_too_much_memory_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Kernel] = []

    def only_take(kernels: Iterable[Kernel], gpu: Target, store: KernelStore) -> dict[str, SimulatedBound]:
        taken.extend(kernels)
        return {}

    monkeypatch.setattr(KERNELS, only_take)
    report = explained()
    assert all(report.simulated_bound(g) is None for g in report.groups)
    assert taken
    store = KernelStore()
    assert simulated_bounds(taken, H100, store, total_seconds=0) == {}
    assert set(simulated_bounds(taken, H100, store)) == {source.symbol for source, _, _ in taken}
    unknown: list[Kernel] = [(source, task, {}) for source, task, _ in taken]
    assert len(simulated_bounds(unknown, H100, store)) == len(taken), "no size of these is symbolic"
    monkeypatch.setattr("taskmap.report.sim_bounds.MOST_BYTES", 100)
    assert simulated_bounds(taken, H100, store) == {}
