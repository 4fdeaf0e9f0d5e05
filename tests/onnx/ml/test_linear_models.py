"""The operators of scikit-learn's pipelines against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, model

X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
WEIGHTS = [0.5, -1.0, 2.0, 0.25, 0.75, -0.5, 1.5, -2.0, 0.1]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Scaler": ("Scaler", {"offset": [0.5, -1.0, 0.0], "scale": [2.0, 3.0, 0.5]}),
    "Scaler, one": ("Scaler", {"offset": [0.5], "scale": [2.0]}),
    "Normalizer, L1": ("Normalizer", {"norm": "L1"}),
    "Normalizer, L2": ("Normalizer", {"norm": "L2"}),
    "Imputer": ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}),
    "LinearRegressor": ("LinearRegressor", {"coefficients": WEIGHTS[:6], "intercepts": [1.0, -1.0], "targets": 2}),
    "LinearClassifier": (
        "LinearClassifier",
        {
            "coefficients": WEIGHTS,
            "intercepts": [0.1, 0.2, -0.3],
            "classlabels_ints": [4, 5, 9],
            "post_transform": "SOFTMAX",
        },
    ),
    "LinearClassifier, two classes": (
        "LinearClassifier",
        {
            "coefficients": WEIGHTS[:3],
            "intercepts": [0.1],
            "classlabels_ints": [0, 1],
            "post_transform": "LOGISTIC",
        },
    ),
}


def single(op: str, attributes: dict[str, Any], shape: list[int]) -> Any:
    names = ["label", "scores"] if op == "LinearClassifier" else ["y"]
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attributes)
    proto = model([node], {"x": (FLOAT, list(shape))}, names)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str) -> None:
    op, attributes = CASES[name]
    x = X.copy()
    if op == "Imputer":
        x[1, 2] = x[3, 0] = np.nan
    proto = single(op, attributes, [5, 3])
    loaded = load_model(proto, engine=by_definition)
    want: Any = ReferenceEvaluator(proto).run(None, {"x": x})
    for got, expected in zip(loaded(x), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert loaded.host_operators == 0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="MAX"):
        load_model(single("Normalizer", {"norm": "MAX"}, [5, 3]), engine=by_definition)(X)
    with pytest.raises(ImportGraphError, match="coefficients"):
        load_model(single("LinearRegressor", {"coefficients": WEIGHTS[:4]}, [5, 3]), engine=by_definition)(X)
    with pytest.raises(ImportGraphError, match="offset"):
        load_model(single("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}, [5, 3]), engine=by_definition)(X)
