"""Operators that the host runs are reported by name, with the reason."""

from __future__ import annotations

import json

import numpy as np
import onnx
import torch
from onnx import helper

from taskmap.onnx.engines import by_definition
from taskmap.onnx.gpu_engine import on_host
from taskmap.onnx.model import load_model
from taskmap.options import Options
from taskmap.report.explain import explain_onnx
from tests.onnx.models import FLOAT, INT64, loop, model


def sorted_and_counted() -> onnx.ModelProto:
    """One operator inside a graph on the host, two between graphs."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="absolute"),
        helper.make_node("TopK", ["a", "k"], ["best", "where"], name="many"),
        helper.make_node("NonZero", ["x"], ["places"], name="present"),
        helper.make_node("Unique", ["best"], ["different"], name="distinct"),
        helper.make_node("Neg", ["different"], ["y"], name="negated"),
    ]
    return model(nodes, {"x": (FLOAT, [300])}, ["y", "where", "places"], {"k": np.array([40])})


def test_a_report_lists_them() -> None:
    loaded = load_model(sorted_and_counted(), Options(profile=True, threads=1))
    report = explain_onnx(loaded, {"x": np.linspace(-1, 1, 300, dtype=np.float32)}, "model")
    assert [(e.target, e.runner, e.reason) for e in report.externs] == [("TopK", "numpy", "sorting many elements")]
    assert [(h.operator, h.node) for h in report.host] == [("NonZero", "present"), ("Unique", "distinct")]
    told = {line.strip() for line in str(report).splitlines()}
    assert {"on host     present", "on host     distinct"} <= told
    assert "the size of its result depends on data; runs between graphs" in str(report)
    assert "through numpy" in str(report)
    assert "PyTorch" not in str(report)
    made = json.loads(report.to_json())
    assert [h["node"] for h in made["host"]] == ["present", "distinct"]
    assert "TopK many: sorting many elements" in made["conditions"]["on the host"]
    page = report.html()
    assert "operators run by numpy" in page
    assert "NonZero present" in page


def test_a_model_that_is_all_compiled_lists_none() -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    loaded = load_model(model([node], {"x": (FLOAT, [3])}, ["y"]), Options(profile=True, threads=1))
    report = explain_onnx(loaded, {"x": np.ones(3, np.float32)})
    assert (report.externs, report.host) == ((), ())
    assert "on the host" not in dict(report.conditions)


def test_a_report_names_the_node_that_prevents_one_graph_for_all_sizes() -> None:
    volume = helper.make_node("Det", ["x"], ["y"], name="volume")
    prevented = load_model(model([volume], {"x": (FLOAT, ["n", "n"])}, ["y"]), Options(profile=True, threads=1))
    x = np.eye(3, dtype=np.float32)
    assert "the Det node 'volume': Det of symbolic sizes" in str(explain_onnx(prevented, {"x": x}))
    negated = helper.make_node("Neg", ["x"], ["y"], name="negated")
    whole = load_model(model([negated], {"x": (FLOAT, ["n", "n"])}, ["y"]), Options(profile=True, threads=1))
    assert "for these sizes only" not in dict(explain_onnx(whole, {"x": x}).conditions)


def test_results_go_to_the_device() -> None:
    x = torch.ones(2)
    alone = on_host(torch.device("meta"), lambda arrays, values: np.negative(arrays[0]))([x], [])
    assert isinstance(alone, torch.Tensor)
    assert alone.device.type == "meta"
    several = on_host(torch.device("meta"), lambda arrays, values: [*arrays, *arrays])([x], [])
    assert isinstance(several, list)
    assert [t.device.type for t in several] == ["meta", "meta"]
    here = on_host(torch.device("cpu"), lambda arrays, values: np.negative(arrays[0]))([x], [])
    assert isinstance(here, torch.Tensor)
    assert here.tolist() == [-1, -1]


def test_loops_are_reported() -> None:
    proto, inputs = loop()
    loaded = load_model(proto, engine=by_definition)
    loaded(inputs)
    (found,) = loaded.on_host
    assert (found.operator, found.between) == ("Loop", True)
    assert "depends on data" in found.reason
    assert loaded.host_operators == 1


def test_an_operator_in_two_graphs_is_reported_once() -> None:
    node = helper.make_node("Pow", ["x", "y"], ["z"], name="power")
    loaded = load_model(model([node], {"x": (INT64, [None]), "y": (INT64, [None])}, ["z"]), engine=by_definition)
    for size in (2, 3):
        loaded(np.arange(size), np.arange(size))
    assert [str(h) for h in loaded.on_host] == ["Pow power: powers of integers"]
