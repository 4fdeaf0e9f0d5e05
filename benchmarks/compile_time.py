"""Seconds until the first result: cold (empty caches) and warm (a second process), each in a process of its own.

The clock starts when model, inputs and torch are loaded and stops when the first call returns; it includes tracing,
compiling, loading and one run. Engines take turns in random order; each warm run follows the cold run that filled its
caches.

python -m benchmarks.compile_time [--models ...] [--engines ...] [--rounds N]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.models import MODELS
from benchmarks.support.child import spawn
from benchmarks.support.engines import choose
from benchmarks.support.harness import Spread
from benchmarks.support.report import Check, Report, parser, start

Times = dict[tuple[str, str], dict[int, float]]
"""Seconds by engine and phase ("cold", "warm"), then by round."""


def collect(
    model: str, engines: list[str], rounds: int, seed: int, threads: int, small: bool
) -> tuple[Times, list[str]]:
    """The times of all rounds, and a note on each run that failed."""
    times: Times = {(engine, phase): {} for engine in engines for phase in ("cold", "warm")}
    notes = []
    draw = random.Random(seed)
    with tqdm(total=2 * rounds * len(engines), desc=model, leave=False, disable=None) as bar:
        for number in range(rounds):
            order = list(engines)
            draw.shuffle(order)
            for engine in order:
                with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder:
                    for phase in ("cold", "warm"):
                        found = spawn(model, engine, seed, threads, Path(folder), small)
                        if "error" in found:
                            notes.append(f"{model}, {engine}, {phase}: {found['error']}")
                        else:
                            times[engine, phase][number] = found["first_call_seconds"]
                        bar.update()
    return times, notes


def ratio(times: Times, phase: str, rival: str) -> Spread | None:
    """taskmap's time over the rival's, paired by round; None if no round has both."""
    own, other = times.get(("taskmap", phase), {}), times.get((rival, phase), {})
    shared = [own[r] / other[r] for r in own if r in other]
    return Spread.of(shared) if shared else None


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 3, ("taskmap", "inductor", "aot_eager"))
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=["resnet50", "bert_base"])
    cli.add_argument("--small", action="store_true", help="the small variants")
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    engines, notes = choose(arguments.engines)
    names = [engine.name for engine in engines]
    report = Report("compile_time", conditions, ("model, s", "engine", "cold", "warm"), notes=notes)
    for model in arguments.models:
        times, failures = collect(model, names, arguments.rounds, arguments.seed, arguments.threads, arguments.small)
        report.notes += failures
        for name in names:
            cells = [times[name, phase] for phase in ("cold", "warm")]
            texts = [Spread.of(cell.values()).text() if cell else "failed" for cell in cells]
            report.rows.append((model, name, *texts))
            report.data.append({"model": model, "engine": name, "cold": cells[0], "warm": cells[1]})
        if "taskmap" not in names:
            continue
        for phase, rival, bound in (("cold", "inductor", 0.25), ("warm", "aot_eager", 1.5)):
            if rival in names:
                found = ratio(times, phase, rival)
                value = found.median if found else float("nan")
                report.checks.append(Check(f"{model}: {phase} compile of taskmap over {rival}'s", value, bound))
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
