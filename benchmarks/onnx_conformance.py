"""ONNX's own test suite, run through taskmap: passed, failed, not applicable (with the reason), for each kind of case.

    python benchmarks/onnx_conformance.py                      every case, compiled; writes the results file
    python benchmarks/onnx_conformance.py --engine definition  every definition evaluated by numpy, nothing compiled
    python benchmarks/onnx_conformance.py --kind node --match add --verbose

Every case runs in a child process that takes many of them, one after another; a case that ends the process is counted
as crashed, and another child goes on after it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import OnnxModel, load_model

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")
RESULTS = Path(__file__).parent / "results" / "onnx_conformance.json"
TRAINING = ("ai.onnx.preview.training", "ai.onnx.training")
CASE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case: passed, failed, crashed or not applicable; ``reason`` says why it did not pass."""

    kind: str
    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    host: int = 0


def cases(kinds: Sequence[str], match: str = "") -> list[tuple[str, Any]]:
    """The cases of the suite, each with its kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(kind, c) for kind in kinds for c in load_model_tests(kind=kind) if match in c.name]


def not_applicable(kind: str, case: Any, model: ModelProto | None) -> str | None:
    """The reason why a case does not apply to taskmap, or None."""
    if model is None:
        return "the model must be downloaded"
    for node in _nodes(model):
        if node.domain in TRAINING:
            return "an operator of training"
        if node.op_type == "ImageDecoder":
            return "it decodes image files"
    for port in [*model.graph.input, *model.graph.output]:
        if _has_complex(port.type):
            return "tensors of complex numbers"
    return None


def _nodes(model: ModelProto) -> Iterator[Any]:
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def _has_complex(kind: Any) -> bool:
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return bool(kind.tensor_type.elem_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128))
    if which in ("sequence_type", "optional_type"):
        return _has_complex(getattr(kind, which).elem_type)
    return False


def model_of(case: Any) -> tuple[ModelProto | None, Path | None]:
    """The model of a case, and the place of its data: a folder, or the file of a model of the kind "real"."""
    if case.model is not None:
        return case.model, None
    if case.model_dir is not None and (Path(case.model_dir) / "model.onnx").exists():
        return onnx.load(str(Path(case.model_dir) / "model.onnx")), Path(case.model_dir)
    light = Path(onnx.__file__).parent.parent / (case.url or "")
    if light.is_file():
        return onnx.load(str(light)), light
    return None, None


def data_sets(case: Any, model: ModelProto, folder: Path | None) -> list[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs."""
    if folder is None:
        return [([_plain(v) for v in i], [_plain(v) for v in o]) for i, o in (case.data_sets or [])]
    if folder.is_file():
        return [_ramp(model, folder)]
    sets = []
    for place in sorted(Path(folder).glob("test_data_set_*")):
        sets.append(
            (
                [
                    _read(place / f"input_{i}.pb", port)
                    for i, port in enumerate(model.graph.input)
                    if (place / f"input_{i}.pb").exists()
                ],
                [_read(place / f"output_{i}.pb", port) for i, port in enumerate(model.graph.output)],
            )
        )
    return sets


def _ramp(model: ModelProto, path: Path) -> tuple[list[Any], list[Any]]:
    """The data of a light model: inputs that rise from 0 to 1, as the suite's own runner makes them."""
    stored = {t.name for t in model.graph.initializer}
    inputs: list[Any] = []
    for port in model.graph.input:
        if port.name not in stored:
            shape = [d.dim_value if d.HasField("dim_value") else 1 for d in port.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    outputs = [path.with_name(f"{path.stem}_output_{i}.pb") for i in range(len(model.graph.output))]
    return inputs, [_read(o, port) for o, port in zip(outputs, model.graph.output, strict=True)]


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _read(path: Path, port: Any) -> Any:
    data = path.read_bytes()
    which = port.type.WhichOneof("value")
    if which == "sequence_type":
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(data)
        return numpy_helper.to_list(sequence)
    if which == "optional_type":
        optional = onnx.OptionalProto()
        optional.ParseFromString(data)
        return numpy_helper.to_optional(optional)
    tensor = TensorProto()
    tensor.ParseFromString(data)
    return numpy_helper.to_array(tensor)


def run_case(kind: str, case: Any, engine: str) -> Outcome:
    """Runs one case."""
    begun = time.perf_counter()
    loaded: OnnxModel | None = None
    model, folder = model_of(case)
    reason = not_applicable(kind, case, model)
    if reason is not None or model is None:
        return Outcome(kind, case.name, "not applicable", reason or "")
    try:
        if engine == "definition":
            loaded = load_model(model, engine=by_definition)
        else:
            loaded = load_model(model)
        for inputs, expected in data_sets(case, model, folder):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = loaded(*inputs)
                compare(results, expected, model, case.rtol, case.atol)
    except Exception as error:
        text = f"{type(error).__name__}: {error}{_nearer(case, model, folder, loaded)}"
        if os.environ.get("CONFORMANCE_TRACE"):
            text += "\n" + traceback.format_exc()
        return Outcome(kind, case.name, "failed", text, time.perf_counter() - begun)
    return Outcome(kind, case.name, "passed", "", time.perf_counter() - begun, loaded.host_operators)


def _nearer(case: Any, model: ModelProto, folder: Path | None, loaded: OnnxModel | None) -> str:
    """For a case of f16 how far the suite's results and taskmap's lie from those in f64, as a sentence; else ""."""
    if loaded is None or not any(p.type.tensor_type.elem_type == TensorProto.FLOAT16 for p in model.graph.output):
        return ""
    reference = ReferenceEvaluator(widened(model))
    names = [p.name for p in model.graph.input]
    errors = [0.0, 0.0]
    try:
        for inputs, expected in data_sets(case, model, folder):
            wide = [v.astype(np.float64) if v.dtype == np.float16 else v for v in inputs]
            exact = reference.run(None, dict(zip(names, wide, strict=False)))
            for which, results in enumerate((expected, loaded(*inputs))):
                found = max(float(np.abs(r.astype(np.float64) - e).max()) for r, e in zip(results, exact, strict=True))
                errors[which] = max(errors[which], found)
    except Exception as error:  # an addition to a report of a failure
        return f"\nIt could not be computed in f64: {type(error).__name__}"
    return f"\nLargest error against f64: {errors[0]:.2e} of the suite's results, {errors[1]:.2e} of taskmap's"


def widened(model: ModelProto) -> ModelProto:
    """The model with f64 in the place of f16 and f32."""
    made = ModelProto()
    made.CopyFrom(model)
    narrow = (TensorProto.FLOAT, TensorProto.FLOAT16)
    for port in [*made.graph.input, *made.graph.output, *made.graph.value_info]:
        if port.type.tensor_type.elem_type in narrow:
            port.type.tensor_type.elem_type = TensorProto.DOUBLE
    tensors = list(made.graph.initializer)
    for node in made.graph.node:
        tensors += [a.t for a in node.attribute if a.type == AttributeProto.TENSOR]
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i in narrow:
                attribute.i = TensorProto.DOUBLE
    for tensor in tensors:
        if tensor.data_type in narrow:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    return made


def compare(results: Sequence[Any], expected: Sequence[Any], model: ModelProto, rtol: float, atol: float) -> None:
    """Raises AssertionError if a result differs from the suite's. Random results are compared by shape only."""
    random = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
    made_randomly = any(n.op_type in random for n in model.graph.node)
    assert len(results) == len(expected), f"{len(results)} results, not {len(expected)}"
    for got, want in zip(results, expected, strict=True):
        _compare_one(got, want, rtol, atol, made_randomly)


def _compare_one(got: Any, want: Any, rtol: float, atol: float, random: bool) -> None:
    if isinstance(want, (list, tuple)):
        assert isinstance(got, list), f"a sequence of {len(want)} was expected"
        assert len(got) == len(want), f"a sequence of {len(want)} was expected"
        for g, w in zip(got, want, strict=True):
            _compare_one(g, w, rtol, atol, random)
        return
    if want is None or got is None:
        assert got is want, "an empty optional was expected"
        return
    want = np.asarray(want)
    assert got.dtype == want.dtype, f"{got.dtype}, not {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
    if random:
        return
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # the suite's own tolerance: two units in the last place
    if want.dtype.kind == "V" or want.dtype.kind not in "fiubcO":
        got, want = got.astype(np.float64), want.astype(np.float64)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(got, want)


def _child(pipe: Connection, kinds: Sequence[str], match: str, engine: str) -> None:
    listed = cases(kinds, match)
    while True:
        place = pipe.recv()
        if place is None:
            return
        kind, case = listed[place]
        pipe.send(run_case(kind, case, engine))


def run_all(kinds: Sequence[str], match: str, engine: str, jobs: int) -> list[Outcome]:
    """Every case, in ``jobs`` child processes; a child that dies is replaced."""
    listed = cases(kinds, match)
    done: list[Outcome | None] = [None] * len(listed)
    queue = iter(range(len(listed)))
    context = multiprocessing.get_context("spawn")
    count = [0]

    def work() -> None:
        child, pipe = None, None
        for place in queue:
            if child is None:
                pipe, other = context.Pipe()
                child = context.Process(target=_child, args=(other, kinds, match, engine), daemon=True)
                child.start()
                other.close()
            assert pipe is not None
            kind, case = listed[place]
            try:
                pipe.send(place)
                done[place] = pipe.recv() if pipe.poll(CASE_SECONDS) else None
            except (EOFError, OSError):
                done[place] = None
            if done[place] is None:
                child.kill()
                child.join()
                done[place] = Outcome(kind, case.name, "crashed", f"the process ended ({child.exitcode}) or hung")
                child = None
            count[0] += 1
            if count[0] % 100 == 0:
                print(f"{count[0]} of {len(listed)}", file=sys.stderr, flush=True)
        if child is not None and pipe is not None:
            pipe.send(None)
            child.join()

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(work) for _ in range(jobs)]:
            future.result()
    return [d for d in done if d is not None]


def table(outcomes: Sequence[Outcome]) -> str:
    """The counts for each kind."""
    lines = [f"{'kind':20} {'cases':>6} {'passed':>7} {'failed':>7} {'crashed':>8} {'n/a':>5} {'of applicable':>14}"]
    for kind in [*dict.fromkeys(o.kind for o in outcomes), "all"]:
        own = [o for o in outcomes if kind in ("all", o.kind)]
        counts = Counter(o.status for o in own)
        applicable = len(own) - counts["not applicable"]
        share = f"{counts['passed'] / applicable:.1%}" if applicable else "-"
        lines.append(
            f"{kind:20} {len(own):6} {counts['passed']:7} {counts['failed']:7} {counts['crashed']:8} "
            f"{counts['not applicable']:5} {share:>14}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--engine", choices=("compiled", "definition"), default="compiled")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="show why cases failed")
    parser.add_argument(
        "--write", type=Path, help=f"the results file (default for a whole compiled run: {RESULTS.name})"
    )
    args = parser.parse_args(argv)
    outcomes = run_all(args.kind or KINDS, args.match, args.engine, args.jobs)
    for o in outcomes:
        if o.status in ("failed", "crashed"):
            print(f"{o.status}: {o.kind} {o.name}: {o.reason if args.verbose else o.reason.splitlines()[0]}")
    print(table(outcomes))
    for reason, number in Counter(o.reason for o in outcomes if o.status == "not applicable").most_common():
        print(f"not applicable: {number} because {reason}")
    on_host = sum(1 for o in outcomes if o.status == "passed" and o.host)
    print(f"passed with operators that run on the host: {on_host}")
    whole = args.kind is None and not args.match and args.engine == "compiled"
    target = args.write or (RESULTS if whole else None)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "onnx": onnx.__version__,
            "engine": args.engine,
            "table": table(outcomes).splitlines(),
            "passed_with_host_operators": on_host,
            "cases": [asdict(o) for o in outcomes if o.status != "passed"],
        }
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(o.status in ("passed", "not applicable") for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
