"""Networks in half precision and with optional inputs, compiled, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taskmap.ir.errors import InputError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import BOOL, FLOAT, model

HALF, BFLOAT = int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)


def drawn(dtype: Any, *shape: int, seed: int) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype(np.float32).astype(dtype)


@pytest.mark.parametrize(("elem", "dtype", "unit"), [(HALF, np.float16, 2**-10), (BFLOAT, ml_dtypes.bfloat16, 2**-7)])
def test_half_precision(elem: int, dtype: Any, unit: float) -> None:
    w, scale, bias = drawn(dtype, 16, 8, seed=0), drawn(dtype, 8, seed=1), drawn(dtype, 8, seed=2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("LayerNormalization", ["m", "scale", "bias"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
        helper.make_node("Cast", ["y"], ["wide"], to=FLOAT),
    ]
    proto = model(nodes, {"x": (elem, ["n", 16])}, ["y", "wide"], {"w": w, "scale": scale, "bias": bias})
    x = drawn(dtype, 5, 16, seed=3)
    y, wide = load_model(proto)(x)
    assert (y.dtype, wide.dtype) == (np.dtype(dtype), np.float32)
    np.testing.assert_array_equal(y.astype(np.float32), wide)

    product = x.astype(np.float64) @ w.astype(np.float64)
    centered = product - product.mean(-1, keepdims=True)
    normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    e = np.exp(np.maximum(normed * scale.astype(np.float64) + bias.astype(np.float64), 0))
    exact = e / e.sum(-1, keepdims=True)
    assert np.abs(wide - exact).max() <= 2 * unit * exact.max()
    assert np.abs(wide - exact).max() > 0  # the type's rounding shows


def test_optional_inputs() -> None:
    then = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["o"], ["t"])], "then", [], [helper.make_empty_tensor_value_info("t")]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "else", [], [helper.make_empty_tensor_value_info("e")]
    )
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("If", ["has"], ["y"], then_branch=then, else_branch=other),
    ]
    proto = model(nodes, {"x": (FLOAT, [2])}, ["y", "has"])
    tensor = helper.make_tensor_type_proto(FLOAT, [2])
    proto.graph.input.append(helper.make_value_info("o", helper.make_optional_type_proto(tensor)))
    loaded = load_model(proto, engine=by_definition)
    x = np.array([1, 2], np.float32)
    for given, wanted in ((None, -x), (x * 3, x * 3)):
        y, has = loaded({"x": x, "o": given})
        np.testing.assert_array_equal(y, wanted)
        assert bool(has) == (given is not None)


def test_sequences_go_in_and_come_out() -> None:
    nodes = [
        helper.make_node("SequenceAt", ["s", "last"], ["y"]),
        helper.make_node("SequenceErase", ["s", "last"], ["rest"]),
    ]
    proto = model(nodes, {}, ["y"], {"last": np.array(-1)})
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    proto.graph.input.append(helper.make_value_info("s", kind))
    proto.graph.output.append(helper.make_value_info("rest", kind))
    loaded = load_model(proto, engine=by_definition)
    parts = [np.full(n, n, np.float32) for n in (1, 2, 3)]
    y, rest = loaded({"s": parts})
    np.testing.assert_array_equal(y, parts[-1])
    assert [r.tolist() for r in rest] == [[1], [2, 2]]


def test_a_type_that_was_not_declared_is_refused() -> None:
    node = helper.make_node("Not", ["x"], ["y"])
    proto: onnx.ModelProto = model([node], {"x": (BOOL, [2])}, ["y"])
    with pytest.raises(InputError, match="bool"):
        load_model(proto, engine=by_definition)(np.ones(2, np.float32))
