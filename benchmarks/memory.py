"""Peak memory of compiling and running each model, in a process of its own for every engine, beside eager's.

The figure is the largest resident set of the process (MiB), without the compilers it starts: the system counts the
parent's pages for a child, so theirs cannot be told apart. Caches are empty ("cold") or hold what a first process left
("warm").

python -m benchmarks.memory [--models ...] [--engines ...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.models import MODELS
from benchmarks.support.child import spawn
from benchmarks.support.engines import choose
from benchmarks.support.report import Report, parser, start


def main(argv: list[str] | None = None) -> int:
    """The command; `--rounds` is accepted for uniformity, and one round is enough for a figure this steady."""
    cli = parser(__doc__ or "", 1, ("eager", "taskmap", "inductor"))
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=["resnet50", "bert_base"])
    cli.add_argument("--small", action="store_true", help="the small variants")
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    engines, notes = choose(arguments.engines)
    header = ("model, MiB", "engine", "model built", "cold peak", "warm peak", "warm over eager")
    report = Report("memory", conditions, header, notes=notes)
    for model in tqdm(arguments.models, desc="memory", leave=False, disable=None):
        eager_peak = float("nan")
        for engine in engines:
            with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder:
                cold, warm = (
                    spawn(model, engine.name, arguments.seed, arguments.threads, Path(folder), arguments.small)
                    for _ in range(2)
                )
            report.data.append({"model": model, "engine": engine.name, "cold": cold, "warm": warm})
            failure = cold.get("error") or warm.get("error")
            if failure:
                report.notes.append(f"{model}, {engine.name}: {failure}")
                report.rows.append((model, engine.name, *["failed"] * 4))
                continue
            if engine.name == "eager":
                eager_peak = warm["peak_mib"]
            figures = (cold["built_mib"], cold["peak_mib"], warm["peak_mib"])
            over = f"{warm['peak_mib'] / eager_peak:.2f}"
            report.rows.append((model, engine.name, *(f"{figure:.0f}" for figure in figures), over))
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
