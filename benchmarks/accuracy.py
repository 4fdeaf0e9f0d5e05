"""Error of each engine against float64 eager, compared with float32 eager's; new weights and inputs in each round.

python -m benchmarks.accuracy [--models ...] [--engines ...] [--rounds N]
"""

from __future__ import annotations

import sys

import torch
from tqdm import tqdm

import taskmap
from benchmarks.models import MODELS, ModelSpec, as_tensors, relative_error, to_float64
from benchmarks.support.engines import Engine, choose
from benchmarks.support.report import Check, Report, parser, start

MOST = 4.0
"""The largest error wanted, as a multiple of float32 eager's."""


def errors(spec: ModelSpec, engines: list[Engine], seed: int, small: bool) -> dict[str, float]:
    """The relative error norm of "eager" and of every engine; NaN for an engine that raises."""
    module, args, kwargs = spec.build(seed, small)
    wide, wide_args = to_float64(module, args)
    reference = as_tensors(wide(*wide_args, **kwargs))
    del wide
    found = {"eager": relative_error(as_tensors(module(*args, **kwargs)), reference)}
    for engine in engines:
        try:
            outputs = as_tensors(engine.prepare(module, args, kwargs)())
            found[engine.name] = relative_error(outputs, reference)
        except Exception as problem:  # a finding of the table, not the end of it
            print(f"{spec.name}, {engine.name}: {type(problem).__name__}: {problem}", file=sys.stderr)
            found[engine.name] = float("nan")
    return found


def extern_operators(spec: ModelSpec, seed: int, small: bool) -> list[str]:
    """The nodes of this model that taskmap leaves to PyTorch, one entry for each."""
    module, args, kwargs = spec.build(seed, small)
    return [str(node) for node in taskmap.explain(module, *args, **kwargs).externs]


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 1, ("taskmap",))
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    cli.add_argument("--small", action="store_true", help="the small variants")
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    engines, notes = choose([name for name in arguments.engines if name != "eager"])
    names = [engine.name for engine in engines]
    columns = [column for name in names for column in (name, f"{name}/eager")]
    report = Report("accuracy", conditions, ("model", "eager", *columns, "extern nodes"), notes=notes)
    with torch.no_grad():
        for model in tqdm(arguments.models, desc="accuracy", leave=False, disable=None):
            spec = MODELS[model]
            worst = {"eager": 0.0}
            ratios = dict.fromkeys(names, 0.0)
            for seed in range(arguments.seed, arguments.seed + arguments.rounds):
                torch.compiler.reset()
                found = errors(spec, engines, seed, arguments.small)
                worst = {name: _larger(worst.get(name, 0.0), error) for name, error in found.items()}
                ratios = {name: _larger(ratios[name], found[name] / found["eager"]) for name in names}
            externs = extern_operators(spec, arguments.seed, arguments.small) if "taskmap" in names else None
            cells = [cell for name in names for cell in (f"{worst[name]:.2e}", f"{ratios[name]:.2f}")]
            count = "" if externs is None else str(len(externs))
            report.rows.append((model, f"{worst['eager']:.2e}", *cells, count))
            report.data.append({"model": model, "errors": worst, "over_eager": ratios, "externs": externs})
            if externs is not None:
                report.checks.append(Check(f"{model}: error of taskmap over eager's", ratios["taskmap"], MOST))
                report.checks.append(Check(f"{model}: extern nodes", len(externs), 0))
    return report.finish(arguments)


def _larger(a: float, b: float) -> float:
    """The maximum, or NaN if either is NaN."""
    return a if a != a or a >= b else b


if __name__ == "__main__":
    sys.exit(main())
