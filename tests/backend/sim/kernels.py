"""Kernels written by hand in the form of generated ones, and their runs in tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim import run as sim
from taskmap.backend.sim.run import Policy, SimReport
from taskmap.backend.store.objects import KernelStore

SEEDS = (0, 1, 2, 3)


def kernel(
    body: str, parameters: str, *, threads: int, grid: Sequence[int] = (1,), shared: int = 0, **more: Any
) -> CudaSource:
    """A kernel with this body."""
    text = f'extern "C" __global__ void __launch_bounds__({threads}) tm_k({parameters})\n{{\n{body}\n}}\n'
    return CudaSource("tm_k", text, ("base", "portable"), False, tuple(grid), threads, shared, (), **more)


def kinds(
    source: CudaSource,
    arrays: Sequence[NDArray[Any]],
    store: KernelStore,
    *,
    outputs: Sequence[int] = (),
    seeds: Iterable[int] = SEEDS,
    policy: Policy = "late",
) -> set[str]:
    """The kinds of problems found in every one of several orders of threads."""
    found: list[set[str]] = []
    for seed in seeds:
        report = sim.run(source, arrays, seed=seed, outputs=outputs, policy=policy, raises=False, store=store)
        found.append({problem.kind for problem in report.problems})
    return set.intersection(*found)


def clean(
    source: CudaSource,
    arrays: Sequence[NDArray[Any]],
    store: KernelStore,
    *,
    outputs: Sequence[int] = (),
    policies: Iterable[Policy] = ("late", "early"),
) -> SimReport:
    """Run in several orders, then without checks; a problem in any of them is raised."""
    for policy in policies:
        for seed in SEEDS:
            report = sim.run(source, arrays, seed=seed, outputs=outputs, policy=policy, store=store)
    sim.run(source, arrays, outputs=outputs, checks=False, store=store)
    return report
