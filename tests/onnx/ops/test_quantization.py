"""QuantizeLinear rounds to even, adds the zero point and saturates, for every kind of number and zero point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from taskmap.onnx.model import load_model
from taskmap.options import Options

TYPES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8, np.uint16: TensorProto.UINT16}
TYPES[np.int16] = TensorProto.INT16


def numbers() -> NDArray[Any]:
    rng = np.random.default_rng()
    drawn = [rng.standard_normal(300) * scale for scale in (1, 50, 300, 1e5, 1e12)]
    halves = np.arange(-70_000, 70_000, 97.5)
    special = [
        np.inf,
        -np.inf,
        np.nan,
        3e38,
        -3e38,
        0.5,
        1.5,
        2.5,
        -0.5,
        255.5,
        256.5,
        -128.5,
        65535.5,
        1e-45,
        0.0,
        -0.0,
    ]
    return np.concatenate([*drawn, halves, special]).astype(np.float32)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("place", [0.0, 0.4, 1.0])
def test_numbers_are_rounded_shifted_and_clamped(dtype: Any, place: float) -> None:
    x, limits = numbers(), np.iinfo(dtype)
    zero = int(limits.min + place * (limits.max - limits.min))
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [len(x)])]
    outputs = [helper.make_tensor_value_info("y", TYPES[dtype], [len(x)])]
    given = {"scale": np.float32(0.5), "zero": np.array(zero, dtype)}
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in given.items()]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs, constants), opset_imports=[helper.make_opsetid("", 21)]
    )
    model.ir_version = 10
    (got,) = load_model(model, Options(threads=1))(x)
    assert got.dtype == dtype
    real = ~np.isnan(x)
    want = np.clip(np.rint(x[real].astype(np.float64) * 2) + zero, limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(np.asarray(got)[real], want)
    assert (np.asarray(got)[~real] == limits.min).all()
