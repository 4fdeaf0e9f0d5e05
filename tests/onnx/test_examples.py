"""Small models, compiled and by definition, against ONNX Runtime, or else against ONNX's own reference."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import EXAMPLES, mlp, scan, shape_chain


def session(model: onnx.ModelProto) -> Any:
    """An object that runs the model by ``run(None, inputs)``."""
    if find_spec("onnxruntime") is None:
        return ReferenceEvaluator(inliner.inline_local_functions(model))
    return import_module("onnxruntime").InferenceSession(model.SerializeToString())


def check(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        if w.shape == (*g.shape, 1):  # the reference's Loop collects scalars with an extra dimension
            w = w[..., 0]
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EXAMPLES)
def test_compiled_equals_the_reference(name: str) -> None:
    model, inputs = EXAMPLES[name]()
    loaded, reference = load_model(model), session(model)
    check(loaded(inputs), reference.run(None, inputs))
    other = {n: -v if v.dtype.kind == "f" else v for n, v in inputs.items()}
    check(loaded(other), reference.run(None, other))


@pytest.mark.parametrize("name", EXAMPLES)
def test_definitions_equal_the_reference(name: str) -> None:
    model, inputs = EXAMPLES[name]()
    check(load_model(model, engine=by_definition)(inputs), session(model).run(None, inputs))


def test_a_scan_goes_backwards() -> None:
    model, inputs = scan(backwards=True)
    rows, (w,) = inputs["x"][::-1], (numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w")
    check(load_model(model)(inputs), [rows.sum(0), rows * w])


@pytest.mark.parametrize("make", [mlp, shape_chain])
def test_one_graph_serves_all_sizes_of_a_named_dimension(make: Any) -> None:
    model, inputs = make()
    (x,) = inputs.values()
    loaded, reference = load_model(model), session(model)
    for batch in (3, 1, 7):
        given = {"x": np.resize(x, (batch, *x.shape[1:])).astype(np.float32)}
        check(loaded(given), reference.run(None, given))
    assert len(loaded.program.segments()) == 1
