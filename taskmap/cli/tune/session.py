"""Tuning from the command line: progress, interruption, report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskmap.cli.output import Bar, clipped, duration, in_short, paint, plain, print_json, table
from taskmap.ir.target import Target
from taskmap.ir.util.lazy import lazily
from taskmap.options import Options
from taskmap.schedules import Problem
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.choice import Choices
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions
from taskmap.tuning.job import Setting
from taskmap.tuning.record import Conditions
from taskmap.tuning.tune import Budget, Progress, Tuned, tune

if TYPE_CHECKING:
    from taskmap.tuning.cuda_bench import gpu_here as _gpu_here
else:
    _gpu_here = lazily("taskmap.tuning.cuda_bench", "gpu_here")


@dataclass(frozen=True, slots=True)
class TuningMachine:
    """The target of tuning, the build settings of kernels, and the conditions of measurements."""

    target: Target
    setting: Setting
    here: Conditions


def cpu_machine(threads: int, isa: str | None, folder: str | None) -> TuningMachine:
    """This machine's CPU. Raises UnsupportedError and CompilerNotFoundError."""
    target = host_target(Options(isa=isa, threads=threads), threads)
    return TuningMachine(
        target,
        Setting(threads, isa, cache_dir=folder),
        conditions(trusted_toolchain(isa=isa, cache_dir=folder), threads),
    )


def cuda_machine(gpu: str | None, folder: str | None) -> TuningMachine:
    """This machine's GPU. Raises NoDeviceError and CompilerNotFoundError, which say what is missing."""
    setting = Setting(1, cache_dir=folder, gpu=gpu)
    target, here = _gpu_here(setting)
    return TuningMachine(target, setting, here)


def tune_one(problem: Problem, where: TuningMachine, database: Database, budget: Budget, quiet: bool = False) -> Tuned:
    """Tune one operator, showing progress."""
    bar = Bar(f"{problem.template} {problem.shapes}", quiet)

    def show(p: Progress) -> None:
        bar.show(p.done, p.total, f"best {duration(p.seconds)} {p.best}" if p.best else "")

    try:
        return tune(problem, where.target, where.setting, where.here, database, budget, show=show)
    finally:
        bar.close()


def report(found: Sequence[Tuned], as_json: bool) -> None:
    """Print the default, the cost model's pick and the best found."""
    if as_json:
        print_json([_content(t) for t in found])
        return
    header = ("operator", "default (/ best)", "cost model (/ best)", "best", "measured", "failed", "took")
    print(table(header, [_row(t) for t in found]))
    for t in found:
        known = "" if t.measured else "  (already known; --again measures again)"
        print(f"best: {clipped(t.best or 'none could be measured')}{known}")
        for config, failure in t.failures.items():
            print(f"{paint(failure.verdict.value, 'red')}: {clipped(config)}: {in_short(failure.reason)}")


def _row(t: Tuned) -> tuple[str, ...]:
    best = t.times.get(t.best or "")

    def against(config: str) -> str:
        return f"{duration(t.times[config])} ({t.times[config] / best:.2f})" if best and config in t.times else "-"

    o = t.operator
    return (
        f"{o.name} {o.shapes} {o.dtypes} {o.layout}",
        against(t.default),
        against(t.pick),
        duration(best) if best else "-",
        f"{len(t.times)}/{t.total}",
        str(len(t.failures)),
        duration(t.seconds),
    )


def _content(t: Tuned) -> dict[str, object]:
    return {
        "operator": str(t.operator),
        "default": t.default,
        "pick": t.pick,
        "best": t.best,
        "times": dict(t.times),
        "failures": {c: {"verdict": f.verdict.value, "reason": f.reason} for c, f in t.failures.items()},
        "measured": t.measured,
        "configs": t.total,
        "seconds": t.seconds,
    }


def report_model(choices: Choices | None, assumed: Mapping[str, int], as_json: bool) -> int:
    """Report the results for a model's operators; returns the exit status, 1 if none can be tuned."""
    found = [] if choices is None else list(choices.tuned)
    for name, n in assumed.items():
        print(f"the dimension {plain(name)} is assumed to be {n} (--shape {plain(name)}=...)", file=sys.stderr)
    if found or as_json:
        report(found, as_json)
    if choices is not None and choices.left and not as_json:
        print(f"{choices.left} operators were not measured: no time was left (--seconds)")
    if not found and not as_json:
        print("no operator has configurations to choose from, or there was no time to measure any")
    return 0 if found else 1
