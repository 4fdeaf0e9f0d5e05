"""The cases of a table one after another, each in a process of its own; resumable."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from benchmarks.support.harness import geometric_mean
from benchmarks.support.report import Check, Report, earlier
from benchmarks.sweep.apart import apart

LONGEST = 1200
"""Seconds of work after which a case is given up."""
Found = dict[str, Any]


def measure_each(
    report: Report,
    arguments: Namespace,
    engines: list[str],
    cases: Sequence[tuple[str, Callable[[], Found]]],
    row: Callable[[Found, list[str]], tuple[str, ...]],
) -> None:
    """Measure the named ``cases`` and enter each into the report, whose notes then say which engines failed.

    With ``--resume`` a case that the results file holds from the same conditions is kept, if all engines are in it.
    """
    kept = earlier(arguments.out / f"{report.name}.json", report.conditions) if arguments.resume else {}
    for module in ("torch._dynamo", "transformers", "taskmap.torch_backend"):
        import_module(module)  # once, before the forks
    for name, work in cases:
        found = kept.get(name)
        if found is None or not set(engines) <= set(found["engines"]):
            found = {"name": name, "right": False, **apart(work, LONGEST)}
        report.enter(found, row(found, engines), arguments.out)
    entered: list[Found] = report.data
    for f in entered:
        failed = {"taskmap": f["failure"]} if "failure" in f else {n: e.get("error") for n, e in f["engines"].items()}
        report.notes += [f"{f['name']}, {name}: {error}" for name, error in failed.items() if error]


def check_speeds(report: Report, what: str, mean: float, worst: float) -> None:
    """The checks that no case is wrong, and that taskmap is ``mean`` times as fast as the fastest other engine in the
    geometric mean of the right ones, and ``worst`` times in the slowest."""
    found: list[Found] = report.data
    report.checks.append(Check(f"{what} that are wrong or refused", sum(not f["right"] for f in found), 0))
    rates = [f["speed"] for f in found if f["right"] and "speed" in f]
    if rates:
        report.checks.append(Check("speed, geometric mean", geometric_mean(rates), mean, at_most=False))
        report.checks.append(Check("speed, slowest", min(rates), worst, at_most=False))
