"""Tuning the matrix products of the models: the default, the cost model's pick and the best of the space.

Every distinct operator is measured by itself, each configuration beside the default in one process, so all figures are
ratios within one run. Also: looking up one operator among 100,000 records, and merging as many.

python -m benchmarks.tuning [--models ...] [--seconds 60] [--most 20] [--records 100000]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.models import MODELS
from benchmarks.report import Check, Report, parser, start
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.driver import Compilation, Fallback, new_session
from taskmap.options import Options
from taskmap.schedules import Problem, problem, space_of
from taskmap.target import host_target
from taskmap.torch_backend import compile_captured
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions, database_path
from taskmap.tuning.job import Setting
from taskmap.tuning.record import Conditions, Operator, Record, Verdict
from taskmap.tuning.share import merge
from taskmap.tuning.tune import Budget, Tuned, tune

_CLOSE = 1.05
_TOP = 5


def main(argv: list[str] | None = None) -> int:
    """The command; `--rounds` and `--engines` are taken for uniformity."""
    cli = parser(__doc__ or "", 1, ("taskmap",))
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    cli.add_argument("--small", action="store_true", help="the small variants")
    cli.add_argument("--seconds", type=float, default=60.0, help="budget of one operator")
    cli.add_argument("--most", type=int, default=0, help="only so many operators, those of the most work; 0 is all")
    cli.add_argument("--records", type=int, default=100_000, help="records of the database that is looked into")
    arguments = cli.parse_args(argv)
    setting = start(arguments)
    header = ("operator", "in models", "configs", "default / best", "pick / best", f"top {_TOP} / best", "seconds")
    report = Report("tuning", setting, header)
    with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder:
        found = _problems(arguments.models, arguments.small, folder)
        wanted = sorted(found, key=lambda p: -p.operations)[: arguments.most or None]
        tuned = {
            p: _tune(p, arguments.threads, arguments.seconds, folder)
            for p in tqdm(wanted, desc="tuning", leave=False, disable=None)
        }
        _fill(report, tuned, found, arguments.threads)
        _care(report, Path(folder), arguments.records)
    return report.finish(arguments)


def _problems(models: list[str], small: bool, folder: str) -> Counter[Problem]:
    """The distinct tunable operators of the models' inference graphs, with how often they occur."""
    found: Counter[Problem] = Counter()
    for name in tqdm(models, desc="models", leave=False, disable=None):
        module, args, kwargs = MODELS[name].build(small=small)
        session = new_session(Options(cache_dir=folder))
        record: list[Compilation | Fallback] = []
        session.record = record
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(module, backend=partial(compile_captured, session=session))(*args, **kwargs)
        graphs = (c for c in record if isinstance(c, Compilation))
        found.update(p for c in graphs for g in c.kernels if (p := problem(g.task, session.target)) is not None)
    return found


def _tune(p: Problem, threads: int, seconds: float, folder: str) -> Tuned:
    target = host_target(Options(threads=threads), threads)
    database = Database(database_path(folder))
    try:
        here = conditions(find_toolchain(), threads)
        return tune(p, target, Setting(threads, cache_dir=folder), here, database, Budget(seconds, None))
    finally:
        database.close()


def _fill(report: Report, tuned: dict[Problem, Tuned], found: Counter[Problem], threads: int) -> None:
    target = host_target(Options(threads=threads), threads)
    defaults, picks, tops = [], [], []
    for p, t in tuned.items():
        name = f"{p.shapes} {p.dtypes} {p.layout}"
        if t.best is None:
            report.notes.append(f"{name}: nothing could be measured")
            continue
        best = t.times[t.best]
        ranked = [t.times[str(c)] / best for c in space_of(p, target).configs if str(c) in t.times]
        default, top = t.times[t.default] / best, min(ranked[:_TOP])
        defaults.append(default)
        picks.append(ranked[0])
        tops.append(top)
        measured = f"{len(t.times)}/{t.total}"
        figures = (f"{default:.3f}", f"{ranked[0]:.3f}", f"{top:.3f}", f"{t.seconds:.0f}")
        report.rows.append((name, str(found[p]), measured, *figures))
        report.data.append({
            "operator": name, "count": found[p], "default": t.default, "pick": t.pick, "best": t.best,
            "times": dict(t.times), "seconds": t.seconds,
        })  # fmt: skip
    if tops:
        share = sum(top <= _CLOSE for top in tops) / len(tops)
        report.checks.append(
            Check(f"share of operators with a config within 5 % in the model's top {_TOP}", share, 0.9, False)
        )
        means = (statistics.geometric_mean(x) for x in (defaults, picks))
        report.notes.append("default and pick over best, geometric means: " + ", ".join(f"{m:.3f}" for m in means))


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
