"""`taskmap tune OPERATOR --target cuda-sim`: configurations ordered by estimates. Nothing is measured or remembered."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.sim.roofline import roofline
from taskmap.backend.sim.run import run
from taskmap.backend.store.objects import KernelStore
from taskmap.cli.operators import problem_of
from taskmap.cli.output import Bar, duration, plain, print_json, table
from taskmap.ir.errors import TaskmapError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.target import GpuTarget
from taskmap.options import Options
from taskmap.schedules import Config, Problem, space_of
from taskmap.targets.choose import simulated_target
from taskmap.tuning.operands import operand

_LARGEST = 2.0 * 512**3
"""The number of an operator's operations that the simulator runs in about a second; larger ones are not simulated."""
_LABEL = "an estimate for {gpu}, not measured and not remembered"


@dataclass(frozen=True, slots=True)
class Estimated:
    """An estimated configuration. seconds: the analytical estimate; simulated: from the simulator's counts,
    None if it did not run, for the reason ``why``."""

    config: str
    seconds: float
    simulated: float | None
    why: str = ""


def estimate(a: argparse.Namespace) -> int:
    """Print the space of an operator, the fastest by the estimate first."""
    target = simulated_target(Options(target="cuda-sim", gpu=a.gpu))
    problem = problem_of(a, target)
    space = space_of(problem, target)
    count = len(space.configs) if a.all else a.first
    folder = KernelStore(a.cache_dir)
    bar = Bar("simulating", a.json)
    found = []
    for number, config in enumerate(space.configs[:count]):
        bar.show(number, count)
        found.append(_estimated(problem, config, target, folder))
    bar.close()
    found.sort(key=lambda e: (e.simulated is None, e.simulated or e.seconds, e.config))
    label = _LABEL.format(gpu=target.name)
    if a.json:
        print_json({
            "operator": f"{problem.template} {problem.shapes} {problem.dtypes} {problem.layout}", "estimate": True,
            "target": str(target), "gpu": target.name, "default": str(space.default), "configs": len(space.configs),
            "estimated": [
                {"config": e.config, "analytical_seconds": e.seconds, "simulated_seconds": e.simulated, "why": e.why}
                for e in found
            ],
        })  # fmt: skip
        return 0
    print(f"{problem.template} {problem.shapes} {problem.dtypes} {problem.layout} on {target}: {label}")
    rows = [
        (
            e.config,
            duration(e.seconds),
            "-" if e.simulated is None else duration(e.simulated),
            "default" if e.config == str(space.default) else "",
        )
        for e in found
    ]
    print(table(("config", "analytical", "simulator's roofline", ""), rows))
    print(f"{len(found)} of {len(space.configs)} configurations")
    for why in dict.fromkeys(e.why for e in found if e.why):
        print(f"not simulated: {plain(why)}")
    return 0


def _estimated(problem: Problem, config: Config, target: GpuTarget, store: KernelStore) -> Estimated:
    seconds = problem.cycles(config, target) / target.clock
    if problem.operations > _LARGEST:
        return Estimated(str(config), seconds, None, "the simulator would take too long; try smaller sizes.")
    try:
        return Estimated(str(config), seconds, _simulated(problem, config, target, store))
    except TaskmapError as error:
        return Estimated(str(config), seconds, None, str(error))


def _simulated(problem: Problem, config: Config, target: GpuTarget, store: KernelStore) -> float:
    """A lower bound on the kernel's time on the GPU, from its traffic and operations in the simulator."""
    task = problem.task()
    source = generate(lower(problem.kernel(task, config, target), target=target), target)
    draw = np.random.default_rng(0)
    dims = dict(zip(task.dims, problem.dims(), strict=True))
    operands = [operand(b, draw, dims) for b in (*task.inputs, *task.outputs)]
    arrays = [o.flat.view(np.uint8).reshape(-1) for o in operands]
    report = run(source, arrays, dims, checks=False, counters=True, store=store)
    return roofline(report.counters, sum(x.nbytes for x in arrays), target).seconds
