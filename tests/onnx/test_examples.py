"""Small models against ONNX Runtime, compiled and by definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from taskmap.onnx_engines import by_definition
from taskmap.onnx_model import load_model
from tests.onnx.models import EXAMPLES, mlp, shape_chain

ort = pytest.importorskip("onnxruntime")


def session(model: onnx.ModelProto) -> Any:
    return ort.InferenceSession(model.SerializeToString())


def check(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
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


@pytest.mark.parametrize("make", [mlp, shape_chain])
def test_one_graph_serves_all_sizes_of_a_named_dimension(make: Any) -> None:
    model, inputs = make()
    (x,) = inputs.values()
    loaded, reference = load_model(model), session(model)
    for batch in (3, 1, 7):
        given = {"x": np.resize(x, (batch, *x.shape[1:])).astype(np.float32)}
        check(loaded(given), reference.run(None, given))
    assert len(loaded.program.segments()) == 1
