"""Support vector machines against ONNX Runtime, and against LIBSVM's coupling of probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from taskmap.errors import ImportGraphError, UnsupportedError
from taskmap.graph.importers.onnx.ml.vector_machines import coupled
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, model
from tests.onnx.rival import onnxruntime_results

COLUMNS = 3
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def single(op: str, results: int, attributes: dict[str, Any], rows: int | str = 6) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], [f"y{i}" for i in range(results)], domain="ai.onnx.ml", **attributes)
    proto = model([node], {"x": (FLOAT, [rows, COLUMNS])}, list(node.output))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto


def numbers(draw: np.random.Generator, count: int) -> list[float]:
    return [float(v) for v in draw.standard_normal(count).astype(np.float32)]


def classifier(seed: int, counts: list[int], kernel: str, proba: bool, post: str, words: bool = False) -> Any:
    draw = np.random.default_rng(seed)
    classes, total = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    attributes: dict[str, Any] = {
        "coefficients": numbers(draw, (classes - 1) * total),
        "kernel_params": [0.5, 0.25, 3.0],
        "kernel_type": kernel,
        "post_transform": post,
        "rho": numbers(draw, pairs),
        "support_vectors": numbers(draw, total * COLUMNS),
        "vectors_per_class": counts,
    }
    if proba:
        attributes |= {"prob_a": [-abs(v) * 3 for v in numbers(draw, pairs)], "prob_b": numbers(draw, pairs)}
    if words:
        return attributes | {"classlabels_strings": [f"class {i}" for i in range(classes)]}
    return attributes | {"classlabels_ints": [10 - i for i in range(classes)]}


def same(proto: onnx.ModelProto, seed: int, rows: int = 6) -> None:
    pytest.importorskip("onnxruntime")
    x = np.random.default_rng(seed + 100).standard_normal((rows, COLUMNS)).astype(np.float32)
    theirs = onnxruntime_results(proto, {"x": x})
    ours = load_model(proto, engine=by_definition)({"x": x})
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if b.dtype.kind in "iO":
            assert a.tolist() == b.tolist()
        else:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("counts", [[3, 2], [2, 3, 1], [1, 2, 2, 3]], ids=len)
@pytest.mark.parametrize("proba", [False, True], ids=["scores", "probabilities"])
def test_classes(kernel: str, counts: list[int], proba: bool) -> None:
    for seed in range(3):
        same(single("SVMClassifier", 2, classifier(seed, counts, kernel, proba, "NONE")), seed)


@pytest.mark.parametrize("post", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_transformed_scores(post: str) -> None:
    same(single("SVMClassifier", 2, classifier(1, [2, 2, 2], "RBF", True, post)), 1)
    same(single("SVMClassifier", 2, classifier(2, [2, 2], "RBF", True, post)), 2)
    if post != "PROBIT":  # of scores, which are not probabilities
        same(single("SVMClassifier", 2, classifier(3, [2, 2, 2], "RBF", False, post)), 3)
    if post == "LOGISTIC":
        same(single("SVMClassifier", 2, classifier(4, [2, 2], "RBF", False, post)), 4)


def test_labels_that_are_strings() -> None:
    same(single("SVMClassifier", 2, classifier(5, [2, 1, 2], "POLY", False, "NONE", words=True)), 5)


def test_without_support_vectors() -> None:
    draw = np.random.default_rng(0)
    three = {"coefficients": numbers(draw, 3 * COLUMNS), "rho": [0.4, 0.4, 0.4], "classlabels_ints": [4, 5, 6]}
    same(single("SVMClassifier", 2, three | {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}), 0)
    one = {"coefficients": numbers(draw, COLUMNS), "rho": [0.4]}
    same(single("SVMRegressor", 1, one | {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}), 1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_numbers(kernel: str, one_class: int) -> None:
    draw = np.random.default_rng(7)
    attributes = {
        "coefficients": numbers(draw, 4),
        "kernel_params": [0.5, 0.25, 3.0],
        "kernel_type": kernel,
        "n_supports": 4,
        "one_class": one_class,
        "rho": [0.3],
        "support_vectors": numbers(draw, 4 * COLUMNS),
    }
    proto = single("SVMRegressor", 1, attributes, rows="rows")
    x = draw.standard_normal((5, COLUMNS)).astype(np.float32)
    (ours,) = load_model(proto, engine=by_definition)({"x": x})
    (theirs,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=2e-5, atol=2e-5)


def test_compiled() -> None:
    """Number of rows symbolic; only the coupling of probabilities runs on the host."""
    attributes = classifier(9, [3, 3], "RBF", False, "LOGISTIC")
    loaded, by_size = load_model(single("SVMClassifier", 2, attributes, rows="rows")), {}
    for rows in (2, 7):
        x = np.random.default_rng(rows).standard_normal((rows, COLUMNS)).astype(np.float32)
        by_size[rows] = loaded({"x": x})
        label, scores = ReferenceEvaluator(single("SVMClassifier", 2, attributes)).run(None, {"x": x})
        assert by_size[rows][0].tolist() == np.asarray(label).tolist()
        np.testing.assert_allclose(by_size[rows][1], np.asarray(scores), rtol=1e-5, atol=1e-6)
    assert loaded.host_operators == 0


def test_coupled_probabilities_are_consistent() -> None:
    """Pairs that come from class probabilities give these back."""
    p = np.random.default_rng(3).dirichlet(np.ones(4), 50)
    pairs = np.stack([p[:, i] / (p[:, i] + p[:, j]) for i in range(4) for j in range(i + 1, 4)], 1)
    found = coupled(pairs, 4)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
    assert np.abs(found - p).max() < 0.05


def test_what_does_not_fit_is_refused() -> None:
    x = np.zeros((6, COLUMNS), np.float32)
    good = classifier(0, [2, 2], "RBF", False, "NONE")
    for change, error, message in (
        ({"post_transform": "SOFTMAX"}, UnsupportedError, "SOFTMAX"),
        ({"rho": [1.0, 2.0]}, ImportGraphError, "rho"),
        ({"coefficients": [1.0]}, ImportGraphError, "coefficients"),
        ({"support_vectors": [1.0]}, ImportGraphError, "support_vectors"),
        ({"kernel_params": [1.0]}, ImportGraphError, "kernel_params"),
        ({"kernel_type": "WAVE"}, ImportGraphError, "WAVE"),
        ({"coefficients": [1.0] * 4}, UnsupportedError, "positive"),
        ({"prob_a": [1.0], "prob_b": [1.0, 2.0]}, ImportGraphError, "prob_b"),
    ):
        with pytest.raises(error, match=message):
            load_model(single("SVMClassifier", 2, good | change), engine=by_definition)({"x": x})
