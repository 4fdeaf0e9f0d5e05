"""Networks that ONNX Runtime's tools quantised, batch 1, against ONNX Runtime and OpenVINO: milliseconds, the time of
the fastest other engine over taskmap's, and the part of random inputs that get the same class as from ONNX Runtime.
Results are right if they are ONNX Runtime's up to values that round the other way, or differ no more than 1.5 times as
much as these from the results of the network before it was quantised.

"qdq": QuantizeLinear and DequantizeLinear around every operator, bytes with signs, weights by channels. "dynamic":
weights of bytes, activations quantised while the model runs. The weights are random, so classes differ less than those
of a trained network. Each case is measured in a process of its own, all engines in the same rounds; the results file is
written anew after each, and ``--resume`` keeps what it holds from the same conditions.

python -m benchmarks.narrow.quantised [--models ...] [--kinds ...] [--engines ...] [--small] [--resume] [--inputs N]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from benchmarks.models import MODELS, as_tensors
from benchmarks.narrow.compared import MOST
from benchmarks.narrow.each_case import check_speeds, measure_each
from benchmarks.narrow.networks import row
from benchmarks.support.conditions import Probe
from benchmarks.support.engines import export_onnx, installed
from benchmarks.support.harness import Protocol, interleave
from benchmarks.support.report import Check, Report, parser, start
from benchmarks.sweep.measure import speeds
from benchmarks.zoo.entries import INTEGERS, Array, Entry, distance
from benchmarks.zoo.variants import dynamic, pairs
from taskmap.onnx.model import load_model
from taskmap.options import Options

NETWORKS = ("resnet50", "mobilenet_v2", "bert_base")
KINDS = {"qdq": pairs, "dynamic": dynamic}
ENGINE_NAMES = ("onnxruntime", "taskmap", "openvino")
WORST, MEAN, SAME = 0.9, 1.1, 0.99
"""The bounds on how many times as fast as the fastest other engine, of every case and of the geometric mean, and on the
part of the inputs that get ONNX Runtime's class."""
Feeds = dict[str, Array]
Run = Callable[[Feeds], list[Array]]


def _onnxruntime(path: Path, threads: int) -> Run:
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, feeds))


def _openvino(path: Path, threads: int) -> Run:
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    model = import_module("openvino").Core().compile_model(str(path), "CPU", settings)
    request = model.create_infer_request()
    return lambda feeds: [np.array(found) for found in request.infer(feeds).to_tuple()]


def _taskmap(path: Path, threads: int) -> Run:
    return load_model(path, Options(threads=threads))


PREPARE: dict[str, Callable[[Path, int], Run]] = {
    "onnxruntime": _onnxruntime,
    "taskmap": _taskmap,
    "openvino": _openvino,
}


def drawn(feeds: Feeds, args: tuple[Tensor, ...], seed: int) -> Feeds:
    """Other inputs of the same kind: standard normal numbers, or integers of the same range."""
    rng = np.random.default_rng(seed)
    found: Feeds = {}
    for (name, array), given in zip(feeds.items(), args, strict=True):
        if given.is_floating_point():
            found[name] = rng.standard_normal(array.shape).astype(array.dtype)
        else:
            found[name] = rng.integers(0, int(array.max()) + 1, array.shape, array.dtype)
    return found


def classes(results: list[Array]) -> Array:
    """The largest element along the last axis of the first result."""
    found: Array = np.argmax(results[0], axis=-1)
    return found.reshape(-1)


def measured(
    name: str, kind: str, small: bool, engines: list[str], protocol: Protocol, threads: int, inputs: int
) -> dict[str, Any]:
    """The facts of one case."""
    torch.set_num_threads(threads)
    module, args, kwargs = MODELS[name].build(protocol.seed, small)
    facts: dict[str, dict[str, Any]] = {}
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "whole.onnx"  # with its weights, which the tools do not look for elsewhere
        onnx.save(onnx.load(export_onnx(module, args, kwargs, folder)), path)
        session = import_module("onnxruntime").InferenceSession(str(path))
        feeds = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
        exact = [t.numpy() for t in as_tensors(module(*args, **kwargs))]
        del session, module
        entry = KINDS[kind](Entry(name, "benchmark", path, feeds), Path(folder))
        for engine in engines:
            try:
                runs[engine] = PREPARE[engine](entry.path, threads)
                results = runs[engine](feeds)
                facts[engine] = {"error": None, "distance": distance(results, runs["onnxruntime"](feeds))}
                facts[engine]["distance_to_f32"] = distance(results, exact)
            except Exception as problem:  # an engine's failure is a finding of the table, not the end of it
                runs.pop(engine, None)
                facts[engine] = {"error": f"{type(problem).__name__}: {problem}".strip().splitlines()[0]}
        calls = {engine: partial(run, feeds) for engine, run in runs.items()}
        kept = interleave(calls, protocol, probe=Probe()).quiet(protocol.accept)
        found: dict[str, Any] = {"engines": facts, "right": _is_right(facts)}
        if "taskmap" in runs:
            found["same_class"] = _agreement(runs, feeds, args, inputs, protocol.seed)
    found["seconds"] = {engine: asdict(kept.seconds(engine)) for engine in runs}
    return found | speeds(kept, list(runs))


def _is_right(facts: dict[str, dict[str, Any]]) -> bool:
    """True if taskmap's results are near ONNX Runtime's, or as near to those of the network that was quantised."""
    ours, theirs = facts["taskmap"], facts["onnxruntime"]
    if ours["error"] or theirs["error"]:
        return False
    return bool(ours["distance"] <= INTEGERS or ours["distance_to_f32"] <= MOST * theirs["distance_to_f32"])


def _agreement(runs: dict[str, Run], feeds: Feeds, args: tuple[Tensor, ...], inputs: int, seed: int) -> float:
    same: list[Array] = []
    for number in range(inputs):
        others = drawn(feeds, args, seed + 1 + number)
        same.append(classes(runs["taskmap"](others)) == classes(runs["onnxruntime"](others)))
    return float(np.concatenate(same).mean())


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ENGINE_NAMES)
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(NETWORKS))
    cli.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    cli.add_argument("--small", action="store_true", help="small variants, for a quick look")
    cli.add_argument("--resume", action="store_true", help="go on with a results file of the same conditions")
    cli.add_argument("--inputs", type=int, default=200, help="inputs whose classes are compared")
    Protocol.add_arguments(cli, window=0.4)
    arguments = cli.parse_args(argv)
    engines = ["onnxruntime", *(n for n in arguments.engines if n != "onnxruntime" and installed(n))]
    protocol = Protocol.of(arguments, pause=0.3)
    report = Report("quantised_networks", start(arguments), ("network, ms", *engines, "speed"))
    report.notes.append("small variants" if arguments.small else "published sizes")
    work = partial(measured, small=arguments.small, engines=engines, protocol=protocol, threads=arguments.threads)
    cases = [
        (f"{name}, {kind}", partial(work, name, kind, inputs=arguments.inputs))
        for name, kind in product(arguments.models, arguments.kinds)
    ]
    measure_each(report, arguments, engines, cases, row)
    entered: list[dict[str, Any]] = report.data
    rated = [f for f in entered if "same_class" in f]
    report.notes += [f"{f['name']}: ONNX Runtime's class for {f['same_class']:.1%}" for f in rated]
    if rated:
        fewest = min(f["same_class"] for f in rated)
        report.checks.append(Check("inputs of ONNX Runtime's class, fewest", fewest, SAME, at_most=False))
    check_speeds(report, "cases", MEAN, WORST)
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
