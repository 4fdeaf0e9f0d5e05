"""The zoo's small models, as built here and as ONNX Runtime's tools transform them: all give correct results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks_main
from benchmarks.support.conditions import Conditions
from benchmarks.support.report import Report, earlier
from benchmarks.zoo.__main__ import facts_of, rival
from benchmarks.zoo.entries import Entry, distance
from benchmarks.zoo.networks import exported
from benchmarks.zoo.published import PACKAGES, SIZES
from benchmarks.zoo.variants import blocks, dynamic, fused, halved, operators, optimised, pairs
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """The encoder as a file."""
    return exported("encoder", tmp_path_factory.mktemp("zoo"), 0)


@pytest.mark.parametrize("make", [dynamic, operators, pairs, blocks, halved, fused, optimised])
def test_what_the_tools_make_of_an_encoder(make: Callable[[Entry, Path], Entry], encoder: Entry) -> None:
    made = make(encoder, encoder.path.parent)
    results = load_model(made.path, engine=by_definition)(made.feeds)
    assert distance(results, rival(made, 1)(made.feeds)) <= made.allowed


def test_an_entry_is_measured(encoder: Entry) -> None:
    made = fused(encoder, encoder.path.parent)
    facts = facts_of(made, load_model(made.path), rival(made, 1))
    assert facts["right"]
    assert facts["one_graph"] in ("yes", "no")
    assert facts["error_to_f64"] < 1e-5
    assert facts["on_host"] == []


def test_wrong_results_are_detected() -> None:
    right = [np.array([1.0, 2.0], np.float32)]
    assert distance(right, right) == 0
    assert distance([np.array([1.0, 2.5], np.float32)], right) == 0.25
    nothing = [np.zeros(2, np.float32)]
    assert distance(nothing, nothing) == 0
    assert distance([np.array([0.0, 1e-9], np.float32)], nothing) == float("inf")
    assert distance([np.array([1e-9, 2e-9])], [np.array([2e-9, 2e-9])]) == 0.5
    for wrong in ([], [right[0][:1]], [right[0].astype(np.int32)], [np.array([1.0, np.nan], np.float32)]):
        assert distance(wrong, right) == float("inf")


def test_one_benchmark_by_its_name(tmp_path: Path) -> None:
    words = ["zoo", "--offline", "--only", "nothing of that name", "--out", str(tmp_path), "--rounds", "1"]
    assert benchmarks_main.main(words) == 0
    assert json.loads((tmp_path / "zoo.json").read_text())["data"] == []
    with pytest.raises(SystemExit, match="no benchmark"):
        benchmarks_main.main(["zoos"])


def test_every_published_model_has_a_package() -> None:
    known = {package.split("==")[0].replace("-", "_") for package in PACKAGES}
    assert {name.split("/")[0] for name in SIZES} == known


def test_a_detector_in_sixteen_bits_chooses_among_the_best(tmp_path: Path) -> None:
    """If scores are equal in sixteen bits, either box may come first; a box that is not among the best is wrong."""
    made = halved(exported("detector", tmp_path, 0), tmp_path)
    assert made.ranking is not None
    boxes, scores = load_model(made.path, engine=by_definition)(made.feeds)
    assert made.ranking.error([boxes, scores]) <= made.allowed
    assert made.ranking.error(rival(made, 1)(made.feeds)) <= made.allowed
    turned = boxes.copy()
    turned[0, 3] = turned[0, 3, ::-1]
    assert made.ranking.error([turned, scores]) > made.allowed
    assert made.ranking.error([np.repeat(boxes[:, :1], 16, 1), scores]) > made.allowed
    assert made.ranking.error([boxes[:, ::-1], scores[:, ::-1]]) == float("inf")
    worst = np.argsort(made.ranking.scores)[:16][::-1]
    assert made.ranking.error([made.ranking.boxes[None, worst], made.ranking.scores[None, worst]]) > made.allowed


def test_what_was_measured_is_kept_for_the_same_conditions(tmp_path: Path) -> None:
    conditions = Conditions.now(0, 2, 7)
    report = Report("zoo", conditions, ("model",))
    report.data += [{"name": "a", "speed": 1.5, "right": True}, {"name": "b", "right": False, "failure": "no"}]
    path = report.write(tmp_path)
    assert set(earlier(path, conditions)) == {"a"}
    assert earlier(path, Conditions.now(1, 2, 7)) == {}
    assert earlier(tmp_path / "none.json", conditions) == {}
