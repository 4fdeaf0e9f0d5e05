"""Tuning from the command line: its progress, its interruption, its report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.cli.output import Bar, duration, paint, plain, print_json, table
from taskmap.ir.types import dtype_named
from taskmap.options import Options
from taskmap.schedules import Problem, read_problem
from taskmap.target import host_target
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions
from taskmap.tuning.job import Setting
from taskmap.tuning.tune import Budget, Progress, Tuned, tune


def problem_of(a: argparse.Namespace) -> Problem:
    """The matrix product that the options say. Raises ScheduleError for a layout that does not exist."""
    kind = dtype_named(a.dtype).name
    return read_problem("cpu.matmul", f"{a.batch}x{a.m}x{a.n}x{a.k}", f"{kind},{kind},{kind}", f"a={a.a} b={a.b}")


def tune_one(problem: Problem, setting: Setting, database: Database, budget: Budget, quiet: bool = False) -> Tuned:
    """Tune one operator, showing how far it is."""
    target = host_target(Options(isa=setting.isa, threads=setting.threads), setting.threads)
    here = conditions(find_toolchain(isa=setting.isa, fast_math=setting.fast_math), setting.threads)
    bar = Bar(f"{problem.template} {problem.shapes}", quiet)

    def show(p: Progress) -> None:
        bar.show(p.done, p.total, f"best {duration(p.seconds)} {p.best}" if p.best else "")

    try:
        return tune(problem, target, setting, here, database, budget, show=show)
    finally:
        bar.close()


def report(found: Sequence[Tuned], as_json: bool) -> None:
    """Default against the cost model's pick against the best found."""
    if as_json:
        print_json([_content(t) for t in found])
        return
    header = ("operator", "default (/ best)", "cost model (/ best)", "best", "measured", "failed", "took")
    print(table(header, [_row(t) for t in found]))
    for t in found:
        known = "" if t.measured else "  (known already; --again measures anew)"
        print(f"best: {t.best or 'none could be measured'}{known}")
        for config, failure in t.failures.items():
            print(f"{paint(failure.verdict.value, 'red')}: {config}: {plain(failure.reason)}")


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
