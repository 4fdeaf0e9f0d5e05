"""Tuning the operators of the models: the default, the cost model's pick and the best found.

Every distinct operator is measured alone, each configuration together with the default in one process, so all figures
are ratios within one run. Each is tuned twice: with the default budget, and then further: the cost model's favourites
and as many of the rest, evenly spaced in its order, as time allows; --spread 0 means the whole space. For models that
were tuned completely: the time, the gain, and the default budget's share of both. Also: looking one operator up among
100,000 records, and merging as many.

With --folder, results are kept: a run that was interrupted, or that takes other models, continues where the last
one ended, and measures nothing twice. --report only prints known results, and --list only lists the operators.

python -m benchmarks.tuning [--models ...] [--seconds 120] [--budget 900] [--folder DIR] [--most 20] [--records 100000]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.models import MODELS
from benchmarks.support.report import Check, Report, parser, start
from benchmarks.support.tuning_spent import Spent
from taskmap.compile.session import new_session
from taskmap.ir.nodes import Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.options import Options
from taskmap.schedules import Problem, problem, read_problem, space_of
from taskmap.targets.choose import host_target
from taskmap.torch_backend import compile_captured
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.choice import Choices
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions, database_path
from taskmap.tuning.job import Setting
from taskmap.tuning.record import Conditions, Operator, Record, Verdict
from taskmap.tuning.share import merge
from taskmap.tuning.tune import FIRST, Budget, Tuned, tune
from taskmap.util.progress import Show

_CLOSE = 1.05
_TOP = 5
_LIST = "operators.txt"
_DEFAULT, _FURTHER = "default budget", "further"


def main(argv: list[str] | None = None) -> int:
    """The command; `--rounds` and `--engines` are accepted for uniformity."""
    cli = parser(__doc__ or "", 1, ("taskmap",))
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    cli.add_argument("--small", action="store_true", help="the small variants")
    cli.add_argument("--seconds", type=float, default=120.0, help="at most of one operator")
    cli.add_argument("--budget", type=float, default=900.0, help="seconds for all of them; the rest is left for later")
    cli.add_argument("--spread", type=int, default=16, help="configurations beside the preferred ones; 0 is all")
    cli.add_argument("--most", type=int, default=0, help="only so many operators, those of the most work; 0 is all")
    cli.add_argument("--only", default="", help="only operators of this template, or part of its name")
    cli.add_argument("--folder", type=Path, help="where what was found is kept; else it is forgotten")
    cli.add_argument("--report", action="store_true", help="measure nothing, and report what is known")
    cli.add_argument("--list", action="store_true", help="only find out which operators the models have")
    cli.add_argument(
        "--records", type=int, default=100_000, help="records of the database that is looked into; 0: none"
    )
    arguments = cli.parse_args(argv)
    setting = start(arguments)
    header = (
        "operator", "in models", "configs", "default / best", "pick / best", f"top {_TOP} / best",
        f"first {FIRST} / best", "seconds",
    )  # fmt: skip
    report = Report("tuning", setting, header)
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskmap-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        models = _problems(arguments.models, arguments.small, folder)
        if arguments.list:
            print("\n".join(f"{name}: {len(has)} operators" for name, has in models.items()))
            return 0
        found = sum(models.values(), Counter[Problem]())
        wanted = sorted(
            (p for p in found if arguments.only in p.template), key=lambda p: (-p.operations * found[p], p.shapes)
        )[: arguments.most or None]
        spent = Spent(folder)
        tuned = _tune_all(wanted, arguments, folder, spent)
        _fill(report, tuned, found, arguments.threads, len(wanted), spent)
        _ends(report, tuned, models, arguments.threads, spent)
        if arguments.records:
            _care(report, Path(stack.enter_context(tempfile.TemporaryDirectory())), arguments.records)
    return report.finish(arguments)


class _EnoughError(Exception):
    """Stops a compilation once the operators to tune are known."""


@dataclass(slots=True, eq=False)
class _Collector(Choices):
    """Records the operators that a session would tune, and ends its compilation."""

    found: Counter[Problem] | None = None

    def tune(self, tasks: Sequence[Task], hints: Mapping[Var, int], show: Show) -> None:  # type: ignore[override]  # a sequence is an iterable
        every = (problem(task, self.target, hints) for task in tasks)
        self.found = Counter(p for p in every if p is not None)
        raise _EnoughError


def _problems(models: list[str], small: bool, folder: Path) -> dict[str, Counter[Problem]]:
    """The distinct tunable operators of the models' inference graphs, with how often they occur. They are kept in a
    file of ``folder``, by model."""
    models_found: dict[str, Counter[Problem]] = {}
    for name in tqdm(models, desc="models", leave=False, disable=None):
        found = models_found[name] = Counter()
        path = folder / f"{name}{'-small' * small}-{_LIST}"
        if not path.exists():
            lines = [
                f"{count}|{p.template}|{p.shapes}|{p.dtypes}|{p.layout}\n"
                for p, count in _problems_of(name, small, folder).items()
            ]
            unfinished = path.with_suffix(".part")
            unfinished.write_text("".join(lines))
            unfinished.replace(path)
        for line in path.read_text().splitlines():
            count, *texts = line.split("|")
            found[read_problem(texts[0], texts[1], texts[2], texts[3])] += int(count)
    return models_found


def _problems_of(name: str, small: bool, folder: Path) -> Counter[Problem]:
    module, args, kwargs = MODELS[name].build(small=small)
    session = new_session(Options(cache_dir=str(folder), tune_seconds=1.0))
    assert session.choices is not None
    c = session.choices
    collector = _Collector(c.path, c.target, c.toolchain, c.options)
    session.choices = collector
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(module, backend=partial(compile_captured, session=session))(*args, **kwargs)
    except Exception:
        if collector.found is None:
            raise
    return collector.found or Counter()


def _tune_all(wanted: Sequence[Problem], a: argparse.Namespace, folder: Path, spent: Spent) -> dict[Problem, Tuned]:
    """The results for each operator that time allowed."""
    target = host_target(Options(threads=a.threads), a.threads)
    here, setting = conditions(trusted_toolchain(), a.threads), Setting(a.threads, cache_dir=str(folder))
    deadline = time.monotonic() + a.budget
    tuned: dict[Problem, Tuned] = {}
    database = Database(database_path(str(folder)))
    further = {_FURTHER: Budget(a.seconds, FIRST if a.spread else None, spread=a.spread)}
    phases = {"known": Budget(known=True)} if a.report else {_DEFAULT: Budget(), **further}
    try:
        for p in tqdm(wanted, desc="tuning", leave=False, disable=None):
            for phase, budget in phases.items():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                within = replace(budget, seconds=min(budget.seconds, left))
                tuned[p] = spent.during(p, phase, partial(tune, p, target, setting, here, database, within))
    finally:
        database.close()
    return {p: t for p, t in tuned.items() if t.times or t.failures}


def _fill(
    report: Report, tuned: Mapping[Problem, Tuned], found: Counter[Problem], threads: int, wanted: int, spent: Spent
) -> None:
    target = host_target(Options(threads=threads), threads)
    rows = {p: _figures(p, t, target) for p, t in tuned.items() if t.best is not None and t.default in t.times}
    report.notes += [f"{p.shapes} {p.layout}: nothing could be measured" for p in tuned if p not in rows]
    for p, (default, pick, top, first) in rows.items():
        t = tuned[p]
        usual, more = spent.of(p, _DEFAULT), spent.of(p, _FURTHER)
        took = usual.seconds + more.seconds
        name = f"{p.template.partition('.')[2]} {p.shapes} {p.layout}"
        figures = (f"{default:.3f}", f"{pick:.3f}", f"{top:.3f}", f"{first:.3f}", f"{took:.0f}")
        report.rows.append((name, str(found[p]), f"{len(t.times)}/{t.total}", *figures))
        report.data.append({
            "operator": f"{name} {p.dtypes}", "count": found[p], "default": t.default, "pick": t.pick, "best": t.best,
            "times": dict(t.times), "failures": {c: f.reason for c, f in t.failures.items()}, "seconds": took,
            "to_the_end": _ended(t), "default_budget": {"seconds": usual.seconds, "best": usual.best},
        })  # fmt: skip
    report.notes.append(f"{len(rows)} of {wanted} operators measured, {sum(_took(spent, p) for p in tuned):.0f} s")
    if not rows:
        return
    for kind in sorted({p.template for p in rows}):
        some = {p: f for p, f in rows.items() if p.template == kind}
        report.notes.append(_summary(kind, some, found, tuned))
    share = sum(top <= _CLOSE for _, _, top, _ in rows.values()) / len(rows)
    report.checks.append(
        Check(f"share of operators with a config within 5 % in the model's top {_TOP}", share, 0.9, False)
    )
    report.notes.append(_summary("all", rows, found, tuned))


def _ends(
    report: Report, tuned: Mapping[Problem, Tuned], models: Mapping[str, Counter[Problem]], threads: int, spent: Spent
) -> None:
    """Of each model all of whose operators were tuned to the end, and of these models together: what that took and
    gained, and what the default budget did."""
    target = host_target(Options(threads=threads), threads)
    whole = {name: has for name, has in models.items() if has and all(p in tuned and _ended(tuned[p]) for p in has)}
    together = {" and ".join(whole): sum(whole.values(), Counter[Problem]())} if len(whole) > 1 else {}
    for name, has in {**whole, **together}.items():
        times = {p: (tuned[p].times, tuned[p].best, _usual(p, tuned[p], target, spent)) for p in has}
        if any(best is None or tuned[p].default not in known for p, (known, best, _) in times.items()):
            continue
        untuned = sum(has[p] * known[tuned[p].default] for p, (known, _, _) in times.items())
        gained = untuned - sum(has[p] * known[best or ""] for p, (known, best, _) in times.items())
        # What the default budget found best counts as what it takes by all that was measured.
        usual = untuned - sum(has[p] * known[found] for p, (known, _, found) in times.items())
        all_of_it, a_part = sum(_took(spent, p) for p in has), sum(spent.of(p, _DEFAULT).seconds for p in has)
        share = usual / gained if gained > 0 else 1.0
        configs = sum(tuned[p].total for p in has)
        report.notes.append(
            f"{name} to the end of the space: {len(has)} operators, {configs} configurations in {all_of_it:.0f} s, "
            f"gain over the default {untuned / (untuned - gained) - 1:.2%}; with the default budget {a_part:.0f} s, "
            f"{share:.0%} of that gain"
        )
        report.data.append({
            "models": name, "operators": len(has), "configs": configs, "untuned_seconds": untuned,
            "gained_seconds": gained, "tuning_seconds": all_of_it, "default_budget_gained_seconds": usual,
            "default_budget_tuning_seconds": a_part, "default_budget_share": share,
        })  # fmt: skip


def _usual(p: Problem, t: Tuned, target: Target, spent: Spent) -> str:
    """The best configuration found by the default budget; if records are older than that file, the best of those it
    measures."""
    found = spent.of(p, _DEFAULT).best
    first = [c for c in (t.default, *(str(c) for c in space_of(p, target).configs[:FIRST])) if c in t.times]
    return found if found is not None and found in t.times else min(first, key=lambda c: t.times[c], default=t.default)


def _ended(t: Tuned) -> bool:
    """True if every configuration of the space was measured, or found to be bad."""
    return len({*t.times, *t.failures}) >= t.total


def _took(spent: Spent, p: Problem) -> float:
    return spent.of(p, _DEFAULT).seconds + spent.of(p, _FURTHER).seconds


_Figures = tuple[float, float, float, float]
"""Times over the best: of the default, the pick, the best of the top few, the best of those measured by default."""


def _figures(p: Problem, t: Tuned, target: Target) -> _Figures:
    assert t.best is not None
    best = t.times[t.best]
    names = [str(c) for c in space_of(p, target).configs]
    default = t.times[t.default] / best
    # What has no time was refused, or there was no time for it: it is not the best of the top.
    ranked = [t.times.get(c, float("inf")) / best for c in names[: max(_TOP, FIRST)]]
    return default, ranked[0], min(ranked[:_TOP]), min(default, *ranked[:FIRST])


def _summary(
    kind: str, rows: Mapping[Problem, _Figures], found: Counter[Problem], tuned: Mapping[Problem, Tuned]
) -> str:
    """Geometric means over operators, the share that the model's top holds, and what tuning gains of all their time."""
    finite = [f for f in rows.values() if max(f) < float("inf")]
    default, pick, top, first = (
        (statistics.geometric_mean(column) for column in zip(*finite, strict=True)) if finite else (0,) * 4
    )
    near = sum(f[2] <= _CLOSE for f in rows.values())

    def total(which: int) -> float:
        return sum(found[p] * tuned[p].times[tuned[p].best or ""] * f[which] for p, f in rows.items() if f[which] < 1e9)

    best = sum(found[p] * tuned[p].times[tuned[p].best or ""] for p in rows)
    return (
        f"{kind}: {len(rows)} operators; over the best found, geometric means: default {default:.3f}, pick {pick:.3f}, "
        f"top {_TOP} {top:.3f}, first {FIRST} {first:.3f}; top {_TOP} within 5 % for {near}; "
        f"of all their time: default {total(0) / best:.3f}, pick {total(1) / best:.3f}, "
        f"first {FIRST} {total(3) / best:.3f}"
    )


def _care(report: Report, folder: Path, count: int) -> None:
    """Merging ``count`` records, and looking one operator up among them."""
    here = Conditions("a machine", 2, "a compiler", "1")
    one, other = Database(folder / "one.sqlite"), Database(folder / "other.sqlite")
    one.add(_records(count, here))
    one.close()
    began = time.perf_counter()
    merge(one.path, other)
    report.checks.append(Check(f"merging {count} records, s", time.perf_counter() - began, 10.0, True))
    operator = next(_records(count, here)).operator
    times = []
    for _ in range(101):
        began = time.perf_counter()
        assert other.best(operator, here) is not None
        times.append(time.perf_counter() - began)
    other.close()
    report.checks.append(Check(f"looking up among {count} records, ms", statistics.median(times) * 1e3, 1.0, True))


def _records(count: int, here: Conditions) -> Iterator[Record]:
    for n in range(count):
        operator = Operator("cpu.matmul", f"1x{n // 100 + 1}x768x768", "f32,f32,f32", "a=k b=n", "cpu:avx512")
        config = f"tile=6x4v, rows={6 * (n % 100 + 1)}, k_blocks=1"
        yield Record(operator, config, Verdict.OK, here, 1e9 + n, (1e-3, 1.1e-3, 1.2e-3))


if __name__ == "__main__":
    raise SystemExit(main())
