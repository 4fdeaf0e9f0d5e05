"""Classic tree ensembles, their labels and maps, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from taskmap.errors import ImportGraphError, UnsupportedError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.rival import Array, onnxruntime_results

pytest.importorskip("onnxruntime")
ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")


def forest(draw: np.random.Generator, trees: int, kind: str, targets: int, low: float) -> dict[str, Any]:
    """Random trees over four features; each leaf has a weight for one to ``targets`` targets."""
    found: dict[str, list[Any]] = {
        k: []
        for k in (
            *(f"nodes_{n}" for n in ("treeids", "nodeids", "featureids", "modes", "values")),
            *(f"nodes_{n}" for n in ("truenodeids", "falsenodeids", "missing_value_tracks_true")),
            *(f"{kind}_{n}" for n in ("treeids", "nodeids", "ids", "weights")),
        )
    }

    def node(tree: int, number: int, leaf: bool, yes: int = 0, no: int = 0) -> None:
        found["nodes_treeids"].append(tree)
        found["nodes_nodeids"].append(number)
        found["nodes_featureids"].append(0 if leaf else int(draw.integers(4)))
        found["nodes_modes"].append("LEAF" if leaf else str(draw.choice(MODES)))
        found["nodes_values"].append(0.0 if leaf else float(draw.normal()))
        found["nodes_truenodeids"].append(yes)
        found["nodes_falsenodeids"].append(no)
        found["nodes_missing_value_tracks_true"].append(int(draw.integers(2)))
        if not leaf:
            return
        for target in sorted(draw.permutation(targets)[: 1 + int(draw.integers(targets))]):
            found[f"{kind}_treeids"].append(tree)
            found[f"{kind}_nodeids"].append(number)
            found[f"{kind}_ids"].append(int(target))
            found[f"{kind}_weights"].append(float(draw.uniform(low, 1.0)))

    for tree in range(trees):
        depth = int(draw.integers(0, 4))
        size = 2 ** (depth + 1) - 1
        for number in range(size):
            node(tree, number, number >= size // 2, 2 * number + 1, 2 * number + 2)
    return found


def model(nodes: list[onnx.NodeProto], results: list[str]) -> onnx.ModelProto:
    """A model with an input of six rows of four numbers."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [6, 4])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name=n) for n in results])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def both(proto: onnx.ModelProto, x: Array) -> tuple[list[Any], list[Any]]:
    """The results of taskmap and of ONNX Runtime."""
    return load_model(proto, engine=by_definition)(x), onnxruntime_results(proto, {"x": x})


def rows(seed: int) -> Array:
    """Six rows, one number of them missing."""
    x = np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32)
    x[2, 1] = np.nan
    return x


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressors(aggregate: str, targets: int) -> None:
    found = forest(np.random.default_rng(targets), 5, "target", targets, -1.0)
    settings: dict[str, Any] = {"n_targets": targets, "aggregate_function": aggregate, "base_values": [0.25] * targets}
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, **found, **settings)
    ours, theirs = both(model([node], ["y"]), rows(1))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_classifiers_of_three_classes(transform: str) -> None:
    found = forest(np.random.default_rng(3), 5, "class", 3, 0.01 if transform == "PROBIT" else -1.0)
    if transform == "PROBIT":
        found["class_weights"] = [w * 0.15 for w in found["class_weights"]]
    settings: dict[str, Any] = {"classlabels_int64s": [4, 7, 9], "post_transform": transform}
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["y", "z"], domain=ML, **found, **settings)
    ours, theirs = both(model([node], ["y", "z"]), rows(2))
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("place", [0, 1])
def test_two_classes_with_weights_for_one(transform: str, low: float, place: int) -> None:
    found = forest(np.random.default_rng(4), 4, "class", 1, low)
    found["class_ids"] = [place] * len(found["class_ids"])
    found["class_weights"] = [w / 4 for w in found["class_weights"]]
    settings: dict[str, Any] = {"classlabels_strings": ["no", "yes"], "post_transform": transform}
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["y", "z"], domain=ML, **found, **settings)
    ours, theirs = both(model([node], ["y", "z"]), rows(3))
    assert list(ours[0]) == list(theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("labels", [{"classlabels_ints": [3, 5, 8]}, {"classlabels_strings": ["a", "b", "c"]}])
def test_maps_of_scores(labels: dict[str, Any]) -> None:
    """A pipeline as skl2onnx writes it: a classifier, and its scores as maps."""
    weights = [float(v) for v in np.random.default_rng(5).standard_normal(12)]
    classify = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain=ML,
        coefficients=weights,
        intercepts=[0.1, 0.2, 0.3],
        post_transform="SOFTMAX",
        **labels,
    )
    keys = {k.replace("_ints", "_int64s"): v for k, v in labels.items()}
    maps = helper.make_node("ZipMap", ["scores"], ["maps"], domain=ML, **keys)
    x = np.nan_to_num(rows(4))
    ours, theirs = both(model([classify, maps], ["label", "maps"]), x)
    assert list(ours[0]) == list(theirs[0])
    assert [list(m) for m in ours[1]] == [list(m) for m in theirs[1]]
    for mine, other in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(list(mine.values()), list(other.values()), rtol=1e-5)


def test_trees_that_do_not_fit_are_refused() -> None:
    found = forest(np.random.default_rng(6), 2, "target", 1, -1.0)
    cases = [
        (found | {"nodes_truenodeids": [99] * len(found["nodes_modes"])}, ImportGraphError),
        (found | {"nodes_modes": ["BRANCH_SOON"] * len(found["nodes_modes"])}, UnsupportedError),
        (found | {"target_weights": [1.0]}, ImportGraphError),
        (found | {"nodes_treeids": [0] * len(found["nodes_modes"])}, ImportGraphError),
        (found | {"post_transform": "LOGISTIC"}, UnsupportedError),
    ]
    for attributes, error in cases:
        node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1, **attributes)
        with pytest.raises(error):
            load_model(model([node], ["y"]), engine=by_definition)(rows(1))
