"""One network in every version of the operator set: a parameter that is an attribute in one version and an input in the
next makes no difference, except where the standard changes its meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import defs, helper

from taskmap.ir.errors import UnsupportedError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, model

NEWEST = defs.onnx_opset_version()
X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


class Network:
    """Collects nodes; numbers are attributes up to a version, and inputs from that version on."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, Any] = {}

    def add(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        """A node, unchanged."""
        self.nodes.append(helper.make_node(op, inputs, outputs, **attributes))

    def moved(self, op: str, inputs: list[str], outputs: list[str], since: int, given: Any, **rest: Any) -> None:
        """A node whose numbers ``given``, by name, are inputs from that version on; floats stay floats."""
        if self.version < since:
            self.add(op, inputs, outputs, **given, **rest)
            return
        names = list(inputs)
        for name, value in given.items():
            whole = f"{outputs[0]}_{name}"
            array = np.asarray(value)
            self.stored[whole] = array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64)
            names.append(whole)
        self.add(op, names, outputs, **rest)


def network(version: int) -> onnx.ModelProto:
    """The network in that version."""
    n = Network(version)
    n.moved("Slice", ["x"], ["cut"], 10, {"starts": [1], "ends": [4], "axes": [2]})
    n.moved("Pad", ["cut"], ["padded"], 11, {"pads": [0, 0, 1, 0, 0, 1], "value": 0.5})
    n.moved("Clip", ["padded"], ["clipped"], 11, {"min": -1.0, "max": 0.75})
    n.moved("Unsqueeze", ["clipped"], ["more"], 13, {"axes": [0]})
    n.moved("Squeeze", ["more"], ["less"], 13, {"axes": [0]})
    n.add("Softmax", ["less"], ["soft"], axis=1)
    n.moved("Split", ["soft"], ["left", "right"], 13, {"split": [2, 3]}, axis=2)
    n.moved("ReduceSum", ["left"], ["sum"], 13, {"axes": [2]}, keepdims=0)
    n.moved("ReduceMean", ["right"], ["mean"], 18, {"axes": [2]}, keepdims=0)
    n.add("Add", ["sum", "mean"], ["added"])
    for name in ("scale", "bias", "center", "spread"):
        n.stored[name] = np.array([1.0, 2.0, 3.0], np.float32)
    n.add("BatchNormalization", ["added", "scale", "bias", "center", "spread"], ["normed"], epsilon=0.0)
    n.add("Dropout", ["normed"], ["kept"])
    n.moved("TopK", ["kept"], ["best", "places"], 10, {"k": [2]} if version >= 10 else {"k": 2}, axis=1)
    n.moved("Unsqueeze", ["best"], ["image"], 13, {"axes": [1, 3]})
    scales = np.array([1, 1, 2, 3], np.float32)
    if version < 10:
        n.moved("Upsample", ["image"], ["y"], 9, {"scales": [1.0, 1.0, 2.0, 3.0]}, mode="nearest")
    else:
        n.stored["scales"] = scales
        n.add("Resize", ["image", "scales"] if version < 11 else ["image", "", "scales"], ["y"], mode="nearest")
    return model(n.nodes, {"x": (FLOAT, [2, 3, 4])}, ["y", "places"], n.stored, opset=version)


def expected(version: int) -> tuple[Any, Any]:
    """Its results in numpy; before version 13 the softmax covers all dimensions from the given one on."""
    clipped = np.clip(np.pad(X[:, :, 1:4].astype(np.float64), [(0, 0), (0, 0), (1, 1)], constant_values=0.5), -1, 0.75)
    e = np.exp(clipped)
    soft = e / e.sum((1, 2) if version < 13 else 1, keepdims=True)
    added = soft[..., :2].sum(-1) + soft[..., 2:].mean(-1)
    numbers = np.array([1.0, 2.0, 3.0])
    normed = (added - numbers) / np.sqrt(numbers) * numbers + numbers
    places = np.argsort(-normed, 1, kind="stable")[:, :2]
    best = np.take_along_axis(normed, places, 1)
    return np.broadcast_to(best[:, None, :, None, None], (2, 1, 2, 2, 3)).reshape(2, 1, 4, 3), places


@pytest.mark.parametrize("version", range(7, NEWEST + 1))
def test_every_version_means_the_same(version: int) -> None:
    y, places = load_model(network(version), engine=by_definition)(X)
    wanted, wanted_places = expected(version)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(places, wanted_places)


def test_the_versions_differ_where_the_standard_does() -> None:
    assert not np.allclose(expected(12)[0], expected(13)[0])


@pytest.mark.parametrize("version", [0, NEWEST + 1])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(UnsupportedError, match=f"version {version}"):
        load_model(model([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"], opset=version))
