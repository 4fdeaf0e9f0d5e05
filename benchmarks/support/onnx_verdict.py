"""Judges the results of a mutated model, beside ONNX's reference evaluator and, if installed, ONNX Runtime.

A result is right where one of them gives it too. Where both differ from it, a reason is looked for that has nothing to
do with correctness: numbers that are random, or a model so ill-conditioned that the reference's own results move as far
when its inputs and weights change in their last place. What is left is wrong.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

SECONDS = 20
RANDOM = frozenset(
    ["RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"]
)
RELATIVE = {"float64": 1e-9, "float32": 2e-4, "float16": 4e-3, "bfloat16": 4e-2}
"""The largest difference that is taken for rounding, as a part of the largest element."""
PERTURBATION = 2.0**-23


class TooSlowError(Exception):
    """The reference took too long."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TooSlowError in the main thread after ``seconds``."""

    def stop(*_: Any) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def by_reference(data: bytes, feeds: dict[str, Any]) -> list[Any]:
    """The outputs by ONNX's reference evaluator; it raises whatever it raises."""
    model = inliner.inline_local_functions(onnx.load_from_string(data))
    return list(ReferenceEvaluator(model).run(None, feeds))


def by_runtime(data: bytes, feeds: dict[str, Any]) -> list[Any]:
    """The outputs by ONNX Runtime as the model is written, without optimisations."""
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds))


REFERENCES: dict[str, Callable[[bytes, dict[str, Any]], list[Any]]] = {"reference": by_reference}
if find_spec("onnxruntime") is not None:
    REFERENCES["onnxruntime"] = by_runtime


def verdict(data: bytes, feeds: dict[str, Any], results: Sequence[Any]) -> tuple[str, str]:
    """The verdict on the results, and the evidence if they are wrong.

    "right", "right, the reference differs", "unchecked: ...", "random", "ill-conditioned", or "wrong".
    """
    answers: dict[str, list[Any]] = {}
    refusals: dict[str, str] = {}
    for name, run in REFERENCES.items():
        try:
            with limited(SECONDS), np.errstate(all="ignore"):
                answers[name] = run(data, feeds)
        except Exception as error:  # references refuse in every way there is
            refusals[name] = f"{type(error).__name__}: {error}"[:300]
    model = onnx.load_from_string(data)
    if "reference" in answers and any(node.op_type == "Loop" for node in model.graph.node):
        pairs = zip(answers["reference"], results, strict=False)
        answers["reference"] = [_collected(answer, result) for answer, result in pairs]
    differences = {name: difference(results, answer) for name, answer in answers.items()}
    evidence = "; ".join(f"{name}: {found or 'the same'}" for name, found in [*differences.items(), *refusals.items()])
    agreeing = [name for name, found in differences.items() if not found]
    if agreeing:
        if len(agreeing) == len(answers):
            return "right", ""
        return f"right by {agreeing[0]}, the other differs", evidence
    if any(node.op_type in RANDOM for node in _nodes(model.graph.node)):
        return "random", ""
    if _divides_by_zero(model, evidence):
        return "undefined: integers divided by zero", evidence
    if _is_extreme(model, feeds) and any(_apart_by_infinities(model, results, a) for a in answers.values()):
        return "undefined: what NaN and infinities in the inputs lead to", evidence
    if not answers:
        return "unchecked: no reference runs it", evidence
    if "reference" in answers and _moves(model, feeds, answers["reference"], results):
        return "ill-conditioned", evidence
    return "wrong", evidence


def _collected(answer: Any, result: Any) -> Any:
    """The reference's answer without a dimension that it adds: scalars that a Loop collects are [n, 1] there."""
    if isinstance(answer, np.ndarray) and answer.shape == (*np.shape(result), 1):
        return answer.reshape(answer.shape[:-1])
    return answer


POSITIONS = frozenset(
    ["GridSample", "RoiAlign", "DeformConv", "MaxRoiPool", "AffineGrid", "Resize", "Upsample", "Range"]
)
"""Operators that make positions of floats: what a NaN or an infinity is as an integer is not defined."""
TO_INTEGERS = frozenset(["QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "Cast", "CastLike"])
"""Operators that make integers of floats: of a NaN or an infinity, as a scale of zero makes, that is not defined."""


CHOICES = frozenset(["MaxPool", "ArgMax", "ArgMin", "TopK"])
"""Operators that say where the largest element is: where there is a NaN, that is not defined."""


def _divides_by_zero(model: ModelProto, evidence: str) -> bool:
    """True if there is a division of integers, and ONNX Runtime refused it for that reason or is not installed."""
    divides = any(node.op_type in ("Div", "Mod") for node in _nodes(model.graph.node))
    return divides and ("division by zero" in evidence or "onnxruntime" not in REFERENCES)


def _is_extreme(model: ModelProto, feeds: dict[str, Any]) -> bool:
    """True if an input, a weight or an attribute has elements that are NaN, infinite, or nearly so."""
    nodes = [*_nodes(model.graph.node), *(n for f in model.functions for n in _nodes(f.node))]
    if any(not abs(a.f) <= 1e4 for node in nodes for a in node.attribute):
        return True
    stored = [t for t in model.graph.initializer if t.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16)]
    arrays = [*feeds.values(), *(numpy_helper.to_array(t) for t in stored)]
    floats = [a.astype(np.float64) for a in arrays if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    quantizes = any(node.op_type in TO_INTEGERS for node in _nodes(model.graph.node))
    return any(
        not np.isfinite(a).all() or np.abs(a).max(initial=0) > 1e4 or (quantizes and (a == 0).any()) for a in floats
    )


def _apart_by_infinities(model: ModelProto, results: Sequence[Any], answer: Sequence[Any]) -> bool:
    """True if the results differ only where one is infinite or NaN, or where positions were computed from floats."""
    if any(node.op_type in POSITIONS | TO_INTEGERS for node in _nodes(model.graph.node)):
        return True
    masked: list[Any] = []
    chosen = any(node.op_type in CHOICES for node in _nodes(model.graph.node))
    for got, want in zip(results, answer, strict=False):
        if chosen and isinstance(got, np.ndarray) and got.dtype.kind == "i" and np.shape(got) == np.shape(want):
            masked.append((want, want))
            continue
        if not isinstance(got, np.ndarray) or np.shape(got) != np.shape(want) or got.dtype.kind != "f":
            return False
        both = np.isfinite(got) & np.isfinite(want)
        masked.append((np.where(both, got, 0).astype(got.dtype), np.where(both, want, 0).astype(got.dtype)))
    return len(results) == len(answer) and not difference([g for g, _ in masked], [w for _, w in masked])


def difference(got: Sequence[Any], want: Sequence[Any]) -> str:
    """The difference between two lists of results, or ""."""
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    for place, (a, b) in enumerate(zip(got, want, strict=True)):
        found = _differs(a, b)
        if found:
            return f"result {place}: {found}"
    return ""


def _differs(got: Any, want: Any) -> str:
    if isinstance(got, list) or isinstance(want, list):
        if not isinstance(got, (list, tuple)) or not isinstance(want, (list, tuple)):
            return "a sequence on one side"
        return difference(got, want)
    if got is None or want is None:
        return "" if got is want else "nothing on one side"
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype:
        return f"{got.dtype}, not {want.dtype}"
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    tolerance = RELATIVE.get(got.dtype.name)
    if tolerance is None:
        number = int((got != want).sum())
        return "" if number == 0 else f"{number} of {got.size} elements differ: {_first(got, want, got != want)}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(b[np.isfinite(b)])
        scale = float(finite.max()) if finite.size else 0.0
        equal = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance * scale)
    return "" if equal.all() else f"{int((~equal).sum())} of {a.size} elements differ: {_first(got, want, ~equal)}"


def _first(got: Any, want: Any, where: Any) -> str:
    places = np.argwhere(where)[:3]
    return ", ".join(f"{got[tuple(p)]} for {want[tuple(p)]} at {p.tolist()}" for p in places)


def _nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g.node)


def _moves(model: ModelProto, feeds: dict[str, Any], answer: Sequence[Any], results: Sequence[Any]) -> bool:
    """True if the reference's results move by at least a hundredth of their distance to taskmap's when its inputs and
    weights change in the last place, or become different numbers altogether."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        made = ModelProto()
        made.CopyFrom(model)
        try:
            for tensor in made.graph.initializer:
                if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE):
                    moved = _perturbed(numpy_helper.to_array(tensor), rng)
                    tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
            fed = {name: _perturbed(value, rng) for name, value in feeds.items()}
            with limited(SECONDS), np.errstate(all="ignore"):
                other = by_reference(made.SerializeToString(), fed)
        except Exception:  # what cannot be perturbed is no evidence
            return False
        apart, moved = _distance(answer, results), _distance(answer, other)
        if moved > 0 and apart <= 100 * moved:
            return True
    return False


def _perturbed(value: Any, rng: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.float64):
        return value
    with np.errstate(all="ignore"):
        return (value * (1 + PERTURBATION * rng.choice((-1.0, 0.0, 1.0), value.shape))).astype(value.dtype)


def _distance(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The largest difference of elements; infinite where one is a number and the other is none, NaN where the results
    are not of one structure, which compares with nothing."""
    most = 0.0
    for x, y in zip(a, b, strict=False):
        if isinstance(x, list) or x is None or y is None or np.shape(x) != np.shape(y):
            return float("nan")
        p, q = np.asarray(x).astype(np.float64), np.asarray(y).astype(np.float64)
        with np.errstate(all="ignore"):
            apart = np.where((p == q) | (np.isnan(p) & np.isnan(q)), 0.0, np.abs(p - q))
        most = max(most, float("inf") if np.isnan(apart).any() else float(apart.max(initial=0.0)))
    return most
