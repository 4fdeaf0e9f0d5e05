"""Operators that ONNX Runtime had before the standard, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx.rival import Case, compare

pytest.importorskip("onnxruntime")
X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
BYTES = np.random.default_rng(1).integers(0, 256, (1, 7, 6, 3)).astype(np.uint8)
CASES = [
    Case("Trilu", {"X": X}),
    Case("Trilu", {"X": X, "k": np.array(1)}, {"upper": 0}, name="lower", stored=["k"]),
    Case(
        "Range", {"start": np.array(2), "limit": np.array(9), "delta": np.array(3)}, stored=["start", "limit", "delta"]
    ),
    Case("Range", {"start": np.array(2), "limit": np.array(5)}, name="ones", stored=["start", "limit"]),
    Case("ExpandDims", {"X": X, "axis": np.array(1, np.int32)}, stored=["axis"]),
    Case("ExpandDims", {"X": X, "axis": np.array(-1, np.int32)}, name="last", stored=["axis"]),
    Case("GatherND", {"data": X, "indices": np.array([[0, 3], [2, 1]])}),
    Case("GatherND", {"data": X, "indices": np.array([[1], [2]], np.int32)}, name="int32"),
    Case("Pad", {"data": X, "pads": np.array([0, 1, 2, 1, 0, 0])}, stored=["pads"]),
    Case(
        "Pad", {"data": X, "pads": np.array([0, 1, 2, 1, 0, 0])}, {"mode": "reflect"}, name="reflect", stored=["pads"]
    ),
    Case(
        "Pad",
        {"data": X, "pads": np.array([0, 1, 2, 1, 0, 0]), "value": np.array([2.5], np.float32)},
        name="value",
        stored=["pads", "value"],
    ),
    Case("NhwcMaxPool", {"x": BYTES}, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_onnxruntime(case: Case) -> None:
    compare(case)
