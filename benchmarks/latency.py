"""Latency of the seven models under each engine, compared with eager PyTorch: float32, batch 1, no grad.

python -m benchmarks.latency [--models ...] [--engines ...] [--rounds N]
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import asdict

import torch
from tqdm import tqdm

from benchmarks.models import MODELS, ModelSpec, as_tensors, relative_error
from benchmarks.support.conditions import Probe
from benchmarks.support.engines import Engine, Run, choose
from benchmarks.support.harness import Measurement, Protocol, geometric_mean, interleave
from benchmarks.support.report import Check, Report, parser, start

ENGINE_NAMES = ("eager", "taskmap", "inductor", "inductor-freezing", "onnxruntime", "openvino")
WRONG = 1e-3
"""A relative error against eager above which an engine's time does not count."""


def prepare(spec: ModelSpec, engines: list[Engine], seed: int) -> tuple[dict[str, Run], dict[str, dict[str, object]]]:
    """The runs by engine, and for each the seconds until its first result and its error against eager.

    An engine that raises or returns another result than eager has an "error" entry and no run.
    """
    module, args, kwargs = spec.build(seed)
    reference = as_tensors(module(*args, **kwargs))
    runs: dict[str, Run] = {}
    facts: dict[str, dict[str, object]] = {}
    for engine in tqdm(engines, desc=f"{spec.name}: compile", leave=False, disable=None):
        begin = time.perf_counter()
        try:
            run = engine.prepare(module, args, kwargs)
            outputs = as_tensors(run())
            error = relative_error(outputs, reference)
        except Exception as problem:  # an engine's failure is a finding of the table, not the end of it
            facts[engine.name] = {"error": f"{type(problem).__name__}: {problem}".splitlines()[0]}
            continue
        facts[engine.name] = {"first_call_seconds": time.perf_counter() - begin, "relative_error": error}
        if error <= WRONG:
            runs[engine.name] = run
        else:
            facts[engine.name]["error"] = f"wrong result: relative error {error:.1e} against eager"
    return runs, facts


def cell(name: str, runs: dict[str, Run], measured: Measurement) -> str:
    """Milliseconds with the range over rounds, and the speed-up over eager."""
    if name not in runs:
        return "failed"
    text = measured.seconds(name).text(1, scale=1e3)
    return text if name == "eager" else f"{text} x{measured.speedup(name, 'eager').text()}"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ENGINE_NAMES)
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    Protocol.add_arguments(cli, window=0.4)
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    engines, notes = choose(["eager", *(n for n in arguments.engines if n != "eager")])
    protocol = Protocol.of(arguments, pause=0.3 if any(engine.own_threads for engine in engines) else 0.02)
    names = [engine.name for engine in engines]
    report = Report("latency", conditions, ("model, ms", *names), notes=notes)
    speedups: dict[str, list[float]] = {name: [] for name in names[1:]}
    probe = Probe()
    with torch.no_grad():
        for model in arguments.models:
            torch.compiler.reset()
            runs, facts = prepare(MODELS[model], engines, arguments.seed)
            measured = interleave(runs, protocol, model, probe)
            kept = measured.quiet(protocol.accept)
            if kept.accept(protocol.accept) != kept:
                report.notes.append(f"{model}: no round was quiet for all engines; these figures are disturbed")
            for name in runs:
                facts[name]["seconds"] = asdict(kept.seconds(name))
                facts[name]["best_seconds"] = kept.best(name)
                if name != "eager":
                    speedup = kept.speedup(name, "eager")
                    facts[name]["speedup"] = asdict(speedup)
                    speedups[name].append(speedup.median)
            report.rows.append((model, *(cell(name, runs, kept) for name in names)))
            report.notes += [f"{model}, {name}: {fact['error']}" for name, fact in facts.items() if "error" in fact]
            report.data.append({"model": model, "engines": facts, "windows": [asdict(w) for w in measured.windows]})
            print(" | ".join(report.rows[-1]), file=sys.stderr, flush=True)
            del runs
            gc.collect()
    means = {name: geometric_mean(values) if values else float("nan") for name, values in speedups.items()}
    report.rows.append(("geometric mean", "", *(f"x{means[name]:.2f}" for name in names[1:])))
    if "taskmap" in names:
        complete = len(speedups["taskmap"]) == len(arguments.models)
        slowest = min(speedups["taskmap"]) if complete else float("nan")
        report.checks.append(Check("least speed-up of taskmap over eager", slowest, 1.0, at_most=False))
        mean = means["taskmap"] if complete else float("nan")
        report.checks.append(Check("geometric mean speed-up of taskmap over eager", mean, 1.7, at_most=False))
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
