"""`taskmap run model.onnx`, after its options: runs the model; times, compares and profiles it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from taskmap.archive.keep_model import keep, run_files
from taskmap.backend.program.executable import TimedRun
from taskmap.cli.options import folder_of
from taskmap.cli.output import plain, print_json
from taskmap.cli.run.compare import Comparison, compare, other_outputs
from taskmap.cli.run.facts import (
    facts_of,
    graph_count,
    graph_facts,
    print_facts,
    save,
    saying_assumed,
    timed,
    write_trace,
)
from taskmap.cli.run.inputs import InputSpec, Wanted, inputs_for
from taskmap.cli.targets import chosen
from taskmap.compile.session import Compilation, Fallback
from taskmap.graph.fusion.planning import Group
from taskmap.graph.importers.onnx import Port
from taskmap.graph.importers.onnx.read.elements import STRING, numpy_type
from taskmap.ir.errors import InputError, UnsupportedError
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.engines import by_definition
from taskmap.onnx.kept_models import Request
from taskmap.onnx.model import OnnxModel, load_model
from taskmap.options import Options
from taskmap.targets.threads import calls_on, planned_threads
from taskmap.util.gc_pause import collector_frozen

# The first result waits for the imports, and few runs are compared or profiled.
if TYPE_CHECKING:
    from taskmap.cli.run.layers import Layers
    from taskmap.cli.run.layers import compare_layers as _compare_layers
    from taskmap.cli.run.layers import onnxruntime_run as _onnxruntime_run
    from taskmap.report.collect import Recorded as _Recorded
    from taskmap.report.collect import account as _account
    from taskmap.report.kernels import with_kernels as _with_kernels
    from taskmap.report.presentation import Report
else:
    _compare_layers = lazily("taskmap.cli.run.layers", "compare_layers")
    _onnxruntime_run = lazily("taskmap.cli.run.layers", "onnxruntime_run")
    _Recorded = lazily("taskmap.report.collect", "Recorded")
    _account = lazily("taskmap.report.collect", "account")
    _with_kernels = lazily("taskmap.report.kernels", "with_kernels")

Array = NDArray[Any]


def run_model(a: argparse.Namespace, request: Request | None = None) -> int:
    """Run the model given by the options; returns the exit status. The compiled model is kept for ``request``, if
    possible."""
    with calls_on(a.threads):
        return _run(a, request)


def _run(a: argparse.Namespace, request: Request | None) -> int:
    if a.trace is not None and not a.profile:
        raise InputError("a trace needs a profile", hint="Add --profile.")
    if a.layers and not a.compare:
        raise InputError("layers need a comparison", hint="Add --compare onnxruntime.")
    began = time.perf_counter()
    target, gpu = chosen(a.target, a.gpu)
    options = Options(target=target, gpu=gpu, isa=a.isa, profile=a.profile, tune_seconds=a.tune, cache_dir=folder_of(a))
    files = None if request is None else run_files(request)
    with collector_frozen():
        model = load_model(a.model, options)
        record: list[Compilation | Fallback] = []
        if model.session is not None:
            model.session.record = record
        inputs, assumed = inputs_for(specs_of(model.inputs), Wanted(a.input, a.shape, dict(a.range), a.seed))
        with saying_assumed(assumed):
            outputs = model(inputs)
    first = time.perf_counter() - began
    for _ in range(a.warmup):
        model(inputs)
    compiled = list(record)
    _taken(record)
    times = [timed(lambda: model(inputs)) for _ in range(a.repeat)]
    names = [p.name for p in model.outputs]
    verdicts: list[Comparison] = []
    if a.compare:
        want = other_outputs(a.compare, a.model, inputs, a.threads)
        verdicts = compare(names, outputs, want, a.rtol, a.atol)
    layers = _layers(a, options, inputs, not all(v.equal for v in verdicts)) if a.layers else None
    if a.save is not None:
        save(a.save, dict(zip(names, outputs, strict=True)))
    report = _report(model, record, len(times), a.trace) if a.profile else None
    facts = facts_of(inputs, dict(zip(names, outputs, strict=True)), first, times, assumed, verdicts)
    facts["graphs"] = _graphs(model)
    if layers is not None:
        facts["layers"] = layers.content()
    if a.json:
        print_json({**facts, **({"profile": json.loads(report.to_json())} if report is not None else {})})
    else:
        print_facts(facts, verdicts, a)
        print(_graphs_text(model))
        if layers is not None:
            print(f"\n{layers}")
        if report is not None:
            print(f"\n{report}")
    if request is not None and files is not None:
        with collector_frozen():
            keep(request, files, model, compiled, inputs)
    return int(not all(v.equal for v in verdicts) or (layers is not None and layers.first is not None))


def _graphs(model: OnnxModel) -> dict[str, Any]:
    made, general = model.graphs
    return graph_facts(made, general, [str(r) for r in model.refusals], [str(h) for h in model.on_host])


def _graphs_text(model: OnnxModel) -> str:
    made, general = model.graphs
    open_sizes = any(
        p.type is not None and not all(isinstance(n, int) for n in p.type.shape or ()) for p in model.inputs
    )
    lines = [graph_count(made, general, open_sizes)]
    lines += [f"  one graph for all sizes is prevented by {plain(str(r))}" for r in model.refusals]
    lines += [f"  on the host: {plain(str(h))}" for h in model.on_host]
    return "\n".join(lines)


def _layers(a: argparse.Namespace, options: Options, inputs: Mapping[str, Array], differs: bool) -> Layers:
    def ours(model: ModelProto, given: Mapping[str, Array]) -> list[Any]:
        return load_model(model, replace(options, profile=False, tune_seconds=None))(dict(given))

    def by_reference(model: ModelProto, given: Mapping[str, Array]) -> list[Any]:
        return load_model(model, engine=by_definition)(dict(given))

    theirs = _onnxruntime_run(a.threads) if a.compare == "onnxruntime" else by_reference
    return _compare_layers(a.model, inputs, ours, theirs, rtol=a.rtol, atol=a.atol, differs=differs)


def specs_of(ports: Sequence[Port]) -> list[InputSpec]:
    """The specifications of a model's inputs."""
    return [
        InputSpec(p.name, _numbers(p), None if p.type is None else p.type.shape, p.kind == "optional") for p in ports
    ]


def _numbers(port: Port) -> np.dtype[Any] | None:
    if not port.is_tensor or port.type is None or port.type.elem == STRING:
        return None  # cannot be random
    try:
        return numpy_type(port.type.elem)
    except UnsupportedError:
        return None


def _taken(record: Sequence[Compilation | Fallback]) -> list[tuple[Compilation, list[TimedRun], list[TimedRun]]]:
    return [(c, *c.take_runs()) for c in record if isinstance(c, Compilation)]


def _report(model: OnnxModel, record: Sequence[Compilation | Fallback], runs: int, trace: Path | None) -> Report:
    """The time of every kernel."""
    taken = _taken(record)
    if trace is not None:
        write_trace(trace, _trace(taken))
    recorded = [_Recorded(c, tuple(main), tuple(prepare), len(main) / runs) for c, main, prepare in taken]
    target = "cpu" if model.session is None else str(model.session.target)
    report = _account(recorded, target, planned_threads(), runs)
    return report if model.session is None else _with_kernels(report, recorded, model.session)


def _trace(taken: Sequence[tuple[Compilation, list[TimedRun], list[TimedRun]]]) -> list[list[tuple[str, float]]]:
    """The last run of every graph: the name of each step, and its seconds."""
    return [
        [
            (origin.name if isinstance(origin, Group) else str(origin), took)
            for origin, took in zip(c.parts.main.origins, main[-1].seconds if main else (), strict=False)
        ]
        for c, main, _ in taken
    ]
