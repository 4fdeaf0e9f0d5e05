"""`taskmap run model.onnx`: run an ONNX model; time it, compare it, profile it."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskmap.accounting import Recorded, account
from taskmap.backend.executable import TimedRun
from taskmap.cli.output import command, duration, paint, plain, positive, print_json, seconds, table
from taskmap.cli.run_compare import WAYS, Verdict, compare, other_outputs
from taskmap.cli.run_inputs import Wanted, inputs_for, named_file, named_range, named_size
from taskmap.constants import FrozenGraph
from taskmap.driver import Compilation, Fallback
from taskmap.graph.planning import Group
from taskmap.ir.errors import InputError
from taskmap.onnx_model import OnnxModel, load_model
from taskmap.options import TARGETS, Options
from taskmap.report import Report

Array = NDArray[Any]


def main(arguments: Sequence[str]) -> int:
    """Run the model that the options name; 1 when a comparison found a difference."""
    p = command(
        "run",
        "Run an ONNX model with inputs from files, or random ones.",
        "taskmap run model.onnx --shape batch=8 --repeat 20 --compare onnxruntime",
    )
    model_options(p)
    p.add_argument("--save", type=Path, metavar="FILE.npz", help="write the outputs")
    p.add_argument("--warmup", type=int, default=1, help="runs before those that are timed (1)")
    p.add_argument("--repeat", type=positive, default=1, help="timed runs (1)")
    p.add_argument("--compare", choices=WAYS, help="with numpy by the operators' definitions, or ONNX Runtime")
    p.add_argument("--rtol", type=seconds, default=1e-3, help="what a comparison allows, relative to each value (1e-3)")
    p.add_argument("--atol", type=seconds, default=1e-4, help="and absolute (1e-4)")
    p.add_argument("--profile", action="store_true", help="the time, bytes and operations of every kernel")
    p.add_argument("--trace", type=Path, metavar="FILE", help="with --profile: a Chrome trace of the last run")
    p.add_argument("--tune", type=seconds, metavar="SECONDS", help="measure configurations of its operators first")
    return run_model(p.parse_args(arguments))


def model_options(p: argparse.ArgumentParser) -> None:
    """The options that say a model, its inputs and where it runs."""
    file = "an input as .npy, .pb or raw .bin, or several as .npz"
    p.add_argument("model", type=Path, help="the model's file")
    p.add_argument("--input", action="append", default=[], type=named_file, metavar="[NAME=]FILE", help=file)
    size = "the size of a symbolic dimension of random inputs (1)"
    p.add_argument("--shape", action="append", default=[], type=named_size, metavar="DIM=SIZE", help=size)
    span = "of random inputs (-1:1, integers 0:2)"
    p.add_argument("--range", action="append", default=[], type=named_range, metavar="[NAME=]LOW:HIGH", help=span)
    p.add_argument("--seed", type=int, default=0, help="of random inputs")
    p.add_argument("--target", choices=TARGETS, default="cpu", help="what runs it (cpu)")
    p.add_argument("--threads", type=positive, help="of the CPU")


def run_model(a: argparse.Namespace) -> int:
    """Run what the options say; the exit status."""
    with ExitStack() as stack:
        if a.threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(a.threads)
        return _run(a)


def _run(a: argparse.Namespace) -> int:
    if a.trace is not None and not a.profile:
        raise InputError("a trace needs a profile", hint="Add --profile.")
    began = time.perf_counter()
    model = load_model(a.model, Options(target=a.target, threads=a.threads, profile=a.profile, tune_seconds=a.tune))
    record: list[Compilation | Fallback] = []
    if model.session is not None:
        model.session.record = record
    inputs, assumed = inputs_for(model.inputs, Wanted(a.input, dict(a.shape), dict(a.range), a.seed))
    outputs = model(inputs)
    first = time.perf_counter() - began
    for _ in range(a.warmup):
        model(inputs)
    _take(record)
    times = [_timed(lambda: model(inputs)) for _ in range(a.repeat)]
    names = [p.name for p in model.outputs]
    verdicts: list[Verdict] = []
    if a.compare:
        want = other_outputs(a.compare, a.model, inputs, a.threads)
        verdicts = compare(names, outputs, want, a.rtol, a.atol)
    if a.save is not None:
        _save(a.save, dict(zip(names, outputs, strict=True)))
    report = _report(model, record, len(times), a.trace) if a.profile else None
    facts = _facts(inputs, dict(zip(names, outputs, strict=True)), first, times, assumed, verdicts)
    if a.json:
        print_json({**facts, **({"profile": json.loads(report.to_json())} if report is not None else {})})
    else:
        _print(facts, verdicts, a)
        if report is not None:
            print(f"\n{report}")
    return int(not all(v.equal for v in verdicts))


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _facts(
    inputs: Mapping[str, Array], outputs: Mapping[str, Any], first: float, times: Sequence[float],
    assumed: Mapping[str, int], verdicts: Sequence[Verdict],
) -> dict[str, Any]:  # fmt: skip
    return {
        "inputs": {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in inputs.items()},
        "assumed": dict(assumed),
        "outputs": {name: _summary(x) for name, x in outputs.items()},
        "first_result_seconds": first,
        "seconds": {
            "median": statistics.median(times),
            "fastest": min(times),
            "slowest": max(times),
            "runs": len(times),
        },
        "compared": [
            {
                "output": v.name,
                "equal": v.equal,
                "absolute": v.absolute,
                "relative": v.relative,
                "differing": v.differing,
                "why": v.why,
            }
            for v in verdicts
        ],
    }


def _summary(x: Any) -> dict[str, Any]:
    if not isinstance(x, np.ndarray):
        return {"kind": type(x).__name__, "length": len(x) if hasattr(x, "__len__") else None}
    found: dict[str, Any] = {"shape": list(x.shape), "dtype": str(x.dtype)}
    if x.size and x.dtype.kind in "biuf":
        values = x.astype(np.float64)
        found |= {"min": float(values.min()), "max": float(values.max()), "mean": float(values.mean())}
        found["nan"] = int(np.isnan(values).sum())
    return found


def _print(facts: Mapping[str, Any], verdicts: Sequence[Verdict], a: argparse.Namespace) -> None:
    for name, n in facts["assumed"].items():
        print(f"the dimension {plain(name)} is taken to be {n} (--shape {plain(name)}=...)")
    rows = [("in", name, f"{x['dtype']}{x['shape']}", "", "", "") for name, x in facts["inputs"].items()]
    for name, x in facts["outputs"].items():
        figures = [f"{x[key]:.6g}" if key in x else "" for key in ("min", "mean", "max")]
        rows.append(("out", name, f"{x['dtype']}{x['shape']}" if "dtype" in x else x["kind"], *figures))
    print(table(("", "name", "type", "min", "mean", "max"), rows, left=3))
    s = facts["seconds"]
    print(f"first result after {duration(facts['first_result_seconds'])}; then {duration(s['median'])}, "
          f"{duration(s['fastest'])} to {duration(s['slowest'])} in {s['runs']} runs")  # fmt: skip
    for v in verdicts:
        word = paint("equal", "green") if v.equal else paint("different", "red")
        why = (
            v.why
            or f"largest error {v.absolute:.3g}, {v.relative:.3g} of the largest value; {v.differing} elements differ"
        )
        print(f"{plain(v.name)}: {word} to {a.compare}: {why}")
    if a.save is not None:
        print(f"outputs written to {a.save}")


def _save(path: Path, outputs: Mapping[str, Any]) -> None:
    """Write the outputs, the whole file or none."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "wb") as file:
            named: dict[str, Any] = {name: np.asarray(x) for name, x in outputs.items()}
            np.savez(file, **named)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"outputs cannot be written to {path}", why=f"{error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _take(record: Sequence[Compilation | Fallback]) -> list[tuple[Compilation, list[TimedRun], list[TimedRun]]]:
    """The timed runs since this was last asked: of what runs at every call, and of what runs once."""
    found = []
    for c in (c for c in record if isinstance(c, Compilation)):
        parts = (c.call.main, c.call.prepare) if isinstance(c.call, FrozenGraph) else (c.call,)
        taken = [list(part.executable.runs) for part in parts]
        for part in parts:
            part.executable.runs.clear()
        found.append((c, taken[0], taken[1] if len(taken) > 1 else []))
    return found


def _report(model: OnnxModel, record: Sequence[Compilation | Fallback], runs: int, trace: Path | None) -> Report:
    """What every kernel took."""
    taken = _take(record)
    if trace is not None:
        _write_trace(trace, taken)
    recorded = [Recorded(c, tuple(main), tuple(prepare), len(main) / runs) for c, main, prepare in taken]
    target = "cpu" if model.session is None else str(model.session.target)
    return account(recorded, target, torch.get_num_threads(), runs)


def _write_trace(path: Path, taken: Sequence[tuple[Compilation, list[TimedRun], list[TimedRun]]]) -> None:
    """The last run of every graph as Chrome's trace events."""
    events: list[dict[str, object]] = []
    now = 0.0
    for number, (c, main, _) in enumerate(taken):
        for origin, took in zip(c.parts.main.origins, main[-1].seconds if main else (), strict=False):
            name = origin.name if isinstance(origin, Group) else str(origin)
            events.append({"name": name, "ph": "X", "pid": number, "tid": 0, "ts": now * 1e6, "dur": took * 1e6})
            now += took
    try:
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the trace cannot be written to {path}", why=f"{error}.") from error
