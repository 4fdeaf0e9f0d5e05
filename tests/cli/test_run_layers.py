"""`taskmap run --layers` names the first node that differs; percentiles and throughput of many runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, save

import taskmap.cli.run.layers as run_layers
from taskmap.cli import main
from taskmap.cli.run.compare import Comparison
from taskmap.cli.run.layers import Layer, bisected

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = exp(-relu(x) + w), of five values; one branch reads a value of the graph around it."""
    then = helper.make_graph(
        [helper.make_node("Add", ["r", "w"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["r", "w"], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, None)]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="first"),
        helper.make_node("Neg", ["r"], ["n"], name="second"),
        helper.make_node("If", ["yes"], ["b"], name="third", then_branch=then, else_branch=other),
        helper.make_node("Add", ["n", "b"], ["s"], name="fourth"),
        helper.make_node("Exp", ["s"], ["y"], name="fifth"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "w"), numpy_helper.from_array(np.array(True), "yes")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize("way", ["onnxruntime", "reference"])
def test_every_node_is_compared(model: Path, capsys: Capture, way: str) -> None:
    if way == "onnxruntime":
        pytest.importorskip("onnxruntime")
    words = ["run", str(model), "--shape", "batch=3", "--repeat", "5", "--compare", way, "--layers"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [layer["node"] for layer in found["layers"]["compared"]] == ["first", "second", "third", "fourth", "fifth"]
    assert found["layers"]["first"] is None
    seconds = found["seconds"]
    assert seconds["fastest"] <= seconds["p50"] <= seconds["p90"] <= seconds["p99"] <= seconds["slowest"]
    assert seconds["p50"] == seconds["median"]
    assert 1 / seconds["slowest"] <= seconds["per_second"] * (1 + 1e-9)
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "no node differs" in text
    assert "runs per second" in text
    assert "p99" in text


def test_the_first_node_that_differs_is_named(model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmap.cli.run.onnx._onnxruntime_run", lambda _: wrong_after("n", {"n", "s", "y"}))
    monkeypatch.setattr("taskmap.cli.run.onnx.other_outputs", lambda *_: [np.zeros((1, 4), np.float32)])
    assert main(["run", str(model), "--compare", "onnxruntime", "--layers"]) == 1
    assert "the first node that differs: second, Neg of r\n" in capsys.readouterr().out


def test_a_difference_of_fused_nodes_is_found_by_bisection(
    model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskmap.cli.run.onnx._onnxruntime_run", lambda _: wrong_after("s", {"s", "y"}, alone=True))
    monkeypatch.setattr("taskmap.cli.run.onnx.other_outputs", lambda *_: [np.zeros((1, 4), np.float32)])
    assert main(["run", str(model), "--compare", "onnxruntime", "--layers", "--json"]) == 1
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert all(layer["equal"] for layer in layers["compared"])
    assert layers["fused"]
    assert layers["first"]["node"] == "fourth"


def wrong_after(first: str, wrong: set[str], alone: bool = False) -> run_layers.Run:
    """A runner that gets the values ``wrong`` wrong; ``alone``: only in a model with one output."""
    pytest.importorskip("onnxruntime")
    right = run_layers.onnxruntime_run(None)
    assert first in wrong

    def run(model: ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
        found = right(model, inputs)
        many = len(found) > 1
        names = [port.name for port in model.graph.output]
        return [x + 1 if n in wrong and not (alone and many) else x for n, x in zip(names, found, strict=True)]

    return run


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_bisection_finds_the_first(count: int) -> None:
    names = [str(n) for n in range(count)]
    for first in range(count + 1):
        asked: list[str] = []

        def judge(name: str, first: int = first, asked: list[str] = asked) -> Layer:
            asked.append(name)
            return Layer(NodeProto(), Comparison(name, 0, 0, int(int(name) >= first)))

        found = bisected(names, judge)
        assert (None if found is None else int(found.verdict.name)) == (None if first == count else first)
        assert len(asked) <= 2 + count.bit_length()


def test_layers_need_something_to_compare_with(model: Path, capsys: Capture) -> None:
    assert main(["run", str(model), "--layers"]) == 2
    assert "Add --compare onnxruntime." in capsys.readouterr().err
