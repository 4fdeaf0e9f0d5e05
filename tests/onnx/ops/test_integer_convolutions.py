"""Convolutions of eight-bit integers are exact for any number of products, even at the ends of their range."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskmap.ir.types import f32, i32
from taskmap.onnx.model import OnnxModel, load_model
from tests.onnx.models import quantized_convolution

U8, I8, I32 = TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32


def convolver(w: Any, groups: int, zero: int, stored: bool = True) -> OnnxModel:
    """y = ConvInteger(x, w) with the zero point ``zero`` of x; ``stored``: w is part of the model."""
    channels = w.shape[1] * groups
    taken = [helper.make_tensor_value_info("x", U8, [1, channels, "h", 9])]
    constants = [numpy_helper.from_array(np.array(zero, np.uint8), "z")]
    if stored:
        constants.append(numpy_helper.from_array(w, "w"))
    else:
        taken.append(helper.make_tensor_value_info("w", helper.np_dtype_to_tensor_dtype(w.dtype), list(w.shape)))
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], pads=[1, 1, 1, 1], group=groups)
    made = [helper.make_tensor_value_info("y", I32, [1, w.shape[0], "h", 9])]
    graph = helper.make_graph([node], "g", taken, made, constants)
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def expected(x: Any, w: Any, groups: int, zero: int) -> Any:
    """The convolution in 64-bit integers."""
    shifted = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(shifted, (3, 3), axis=(2, 3))
    per, outer = w.shape[1], w.shape[0] // groups
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, g * per : (g + 1) * per], w[g * outer : (g + 1) * outer].astype(int))
        for g in range(groups)
    ]
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(("channels", "outer", "groups"), [(3, 5, 1), (32, 8, 1), (130, 4, 1), (8, 8, 8), (80, 4, 2)])
def test_sums_are_exact(channels: int, outer: int, groups: int, stored: bool) -> None:
    draw = np.random.default_rng(channels)
    for case in range(3):
        zero = (0, 128, 255)[case]
        x = draw.choice([0, 1, 254, 255], (1, channels, 6, 9)).astype(np.uint8)
        w = draw.choice([-128, -127, 126, 127], (outer, channels // groups, 3, 3)).astype(np.int8)
        if case == 2:  # every product has the largest possible value
            x[:], w[:] = 0, -128
        made = convolver(w, groups, zero, stored)
        feeds = {"x": x} if stored else {"x": x, "w": w}
        np.testing.assert_array_equal(made(feeds)[0], expected(x, w, groups, zero))
        assert not made.host_operators
        nodes = [n for s in made.program.segments() if s.graph is not None for n in s.graph.nodes()]
        kinds = {n.dtype for n in nodes if "transposed" in n.attrs}
        products = [n for n in nodes if n.op == "convolution_product"]
        assert len(products) == (groups == 1)
        assert kinds == (set() if groups == 1 else {f32} if groups != 2 or stored else {i32}), "floats if exact"


def test_a_quantised_convolution_adds_its_bias_as_an_integer() -> None:
    draw = np.random.default_rng(0)
    w, bias = (
        draw.integers(-128, 128, (4, 20, 3, 3)).astype(np.int8),
        np.array([2**24 + 1, -(2**24) - 3, 7, 0], np.int32),
    )
    scale, one = np.float32(2.0**-18), np.float32(1.0)
    stored = {
        "xs": one, "xz": np.uint8(3), "w": w, "ws": one, "wz": np.int8(0), "ys": np.float32(1 / scale),
        "yz": np.uint8(120), "b": bias,
    }  # fmt: skip
    constants = [numpy_helper.from_array(np.asarray(v), name) for name, v in stored.items()]
    node = helper.make_node("QLinearConv", ["x", *stored], ["y"], pads=[1, 1, 1, 1])
    ports = [helper.make_tensor_value_info(*p) for p in (("x", U8, [1, 20, 7, 9]), ("y", U8, [1, 4, 7, 9]))]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], constants)
    made = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    x = draw.integers(0, 256, (1, 20, 7, 9)).astype(np.uint8)
    total = expected(x, w, 1, 3) + bias.reshape(1, 4, 1, 1)
    rounded = np.rint(total.astype(np.float32) * scale) + 120
    np.testing.assert_array_equal(made(x)[0], rounded.clip(0, 255).astype(np.uint8))


def test_zero_points_of_0_are_not_subtracted() -> None:
    """Here those of the weights: otherwise each window of the image would be summed for their sake."""
    proto, inputs = quantized_convolution()
    made = load_model(proto)
    (got,) = made(inputs)
    nodes = [n for s in made.program.segments() if s.graph is not None for n in s.graph.nodes()]
    assert sum(n.op == "shift" for n in nodes) == 1
    (want,) = ReferenceEvaluator(proto).run(None, inputs)
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-5)
