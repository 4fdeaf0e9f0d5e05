"""ONNX Runtime's operators on quantised tensors against ONNX Runtime itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.rival import Array, Case, compare, onnxruntime_results

pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(22)


def f32(*shape: int) -> Array:
    """Normal numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> Array:
    """Numbers from 0 to 255."""
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Array:
    """Numbers from -128 to 127."""
    return RANDOM.integers(-128, 128, shape).astype(np.int8)


def i7(*shape: int) -> Array:
    """Numbers from -64 to 63: on CPUs without VNNI, ONNX Runtime adds two products of bytes in sixteen bits, where
    those of larger weights saturate."""
    return RANDOM.integers(-64, 64, shape).astype(np.int8)


def scale(value: float) -> Array:
    """A single scale."""
    return np.array(value, np.float32)


def zero(value: int, dtype: type = np.uint8) -> Array:
    """A single zero point."""
    return np.array(value, dtype)


def pair(a: Array, b: Array, dtype: type = np.uint8) -> dict[str, Array]:
    """The inputs of a binary operator."""
    return {
        "A": a,
        "A_scale": scale(0.02),
        "A_zero_point": zero(3, dtype),
        "B": b,
        "B_scale": scale(0.03),
        "B_zero_point": zero(5, dtype),
        "C_scale": scale(0.05),
        "C_zero_point": zero(7, dtype),
    }


def one(x: Array, dtype: type = np.uint8, out: float = 0.05) -> dict[str, Array]:
    """The inputs of a unary operator."""
    return {
        "X": x,
        "X_scale": scale(0.02),
        "X_zero_point": zero(9, dtype),
        "Y_scale": scale(out),
        "Y_zero_point": zero(4, dtype),
    }


def columns(*shape: int, low: float = 0.01) -> Array:
    """One scale per column."""
    return (RANDOM.random(shape) * 0.02 + low).astype(np.float32)


QUANTISED_ATTENTION: dict[str, Any] = {
    "input": u8(2, 4, 8),
    "weight": i7(8, 24),
    "bias": f32(24),
    "input_scale": scale(0.02),
    "weight_scale": columns(24),
    "mask_index": np.array([3, 4], np.int32),
    "input_zero_point": zero(120),
    "weight_zero_point": np.zeros(24, np.int8),
}
CASES = [
    Case("QLinearAdd", pair(u8(2, 3, 4), u8(3, 1)), steps=1),
    Case("QLinearAdd", pair(i8(2, 3), i8(2, 3), np.int8), steps=1, name="signed"),
    Case("QLinearMul", pair(u8(2, 3, 4), u8(4)), steps=1),
    Case("QLinearSigmoid", one(u8(3, 40), out=0.004), steps=1),
    Case("QLinearLeakyRelu", one(i8(3, 40), np.int8), {"alpha": 0.2}, steps=1),
    Case("QLinearSoftmax", one(u8(3, 10), out=0.004), {"axis": -1, "opset": 13}, steps=1),
    Case("QLinearSoftmax", one(u8(2, 3, 4), out=0.004), {"axis": 1, "opset": 11}, steps=1, name="flat"),
    Case("QLinearGlobalAveragePool", one(u8(2, 3, 4, 5)), steps=1),
    Case("QLinearGlobalAveragePool", one(u8(2, 4, 5, 3)), {"channels_last": 1}, steps=1, name="last"),
    Case(
        "QLinearAveragePool",
        one(u8(1, 3, 6, 7)),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "count_include_pad": 1},
        steps=1,
    ),
    Case(
        "QLinearAveragePool",
        one(u8(1, 6, 7, 3)),
        {"kernel_shape": [3, 2], "channels_last": 1},
        steps=1,
        name="last",
    ),
    Case(
        "QLinearConcat",
        {
            "Y_scale": scale(0.03),
            "Y_zero_point": zero(8),
            "a": u8(2, 3),
            "a_scale": scale(0.02),
            "a_zero": zero(1),
            "b": u8(2, 4),
            "b_scale": scale(0.04),
            "b_zero": zero(2),
        },
        {"axis": 1},
        steps=1,
        stored=["Y_scale", "Y_zero_point", "a_scale", "a_zero", "b_scale", "b_zero"],
    ),
    Case(
        "QLinearWhere",
        {
            "condition": RANDOM.random((2, 3, 4)) < 0.5,
            "X": u8(3, 4),
            "x_scale": scale(0.02),
            "x_zero": zero(1),
            "Y": u8(2, 1, 4),
            "y_scale": scale(0.03),
            "y_zero": zero(7),
            "z_scale": scale(0.05),
            "z_zero": zero(3),
        },
        steps=1,
        stored=["x_scale", "x_zero", "y_scale", "y_zero", "z_scale", "z_zero"],
    ),
    Case(
        "MatMulIntegerToFloat",
        {
            "A": u8(2, 3, 8),
            "B": i7(8, 5),
            "a_scale": scale(0.02),
            "b_scale": columns(5),
            "a_zero_point": zero(17),
            "b_zero_point": i8(5),
            "bias": f32(5),
        },
    ),
    Case("DynamicQuantizeMatMul", {"A": f32(2, 3, 8), "B": i7(8, 5), "b_scale": columns(5), "z": None, "bias": f32(5)}),
    Case(
        "DynamicQuantizeMatMul",
        {"A": f32(3, 8), "B": u8(8, 5), "b_scale": scale(0.01), "b_zero_point": zero(100)},
        name="one",
    ),
    Case(
        "QGemm",
        {
            "A": u8(3, 8),
            "a_scale": scale(0.02),
            "a_zero_point": zero(9),
            "B": i7(5, 8),
            "b_scale": scale(0.01),
            "b_zero_point": zero(0, np.int8),
            "C": RANDOM.integers(-99, 99, 5).astype(np.int32),
            "y_scale": scale(0.1),
            "y_zero_point": zero(30),
        },
        {"transB": 1},
        steps=1,
    ),
    Case(
        "QGemm",
        {
            "A": u8(3, 8),
            "a_scale": scale(0.02),
            "a_zero_point": zero(9),
            "B": i7(8, 5),
            "b_scale": columns(5),
            "b_zero_point": np.zeros(5, np.int8),
        },
        {"alpha": 0.5},
        name="float",
    ),
    Case(
        "QLinearConv",
        {
            "x": u8(1, 6, 7, 4),
            "x_scale": scale(0.02),
            "x_zero_point": zero(9),
            "w": i7(5, 4, 3, 3),
            "w_scale": columns(5),
            "w_zero_point": np.zeros(5, np.int8),
            "y_scale": scale(0.5),
            "y_zero_point": zero(100),
            "B": RANDOM.integers(-999, 999, 5).astype(np.int32),
        },
        {"pads": [1, 1, 1, 1], "channels_last": 1},
        steps=1,
        stored=["w", "x_scale", "x_zero_point", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B"],
    ),
    Case("QAttention", QUANTISED_ATTENTION, {"num_heads": 2}, near=1e-4),
    Case(
        "QAttention",
        QUANTISED_ATTENTION | {"mask_index": None, "past": f32(2, 2, 2, 3, 4)},
        {"num_heads": 2, "unidirectional": 1},
        results=2,
        near=1e-4,
        name="past",
    ),
    Case("QuantizeLinear", {"x": f32(3, 4), "y_scale": scale(0.001), "y_zero_point": zero(99, np.uint16)}),
    Case(
        "DequantizeLinear",
        {
            "x": RANDOM.integers(-999, 999, (3, 4)).astype(np.int16),
            "x_scale": columns(4),
            "zero": np.zeros(4, np.int16),
        },
        {"axis": 1},
        stored=["x_scale", "zero"],
    ),
    Case(
        "QEmbedLayerNormalization",
        {
            "input_ids": RANDOM.integers(0, 20, (2, 5)).astype(np.int32),
            "segment_ids": RANDOM.integers(0, 2, (2, 5)).astype(np.int32),
            "word": u8(20, 8),
            "position": u8(7, 8),
            "segment": u8(2, 8),
            "gamma": u8(8),
            "beta": u8(8),
            "mask": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32),
            **{f"scale{i}": scale(0.02 + 0.01 * i) for i in range(5)},
            **{f"zero{i}": zero(100 + i) for i in range(5)},
        },
        results=2,
    ),
]


def nibbles(bits: int, *shape: int) -> Array:
    """Weights of ``bits`` bits, packed into bytes."""
    return u8(*shape[:-1], shape[-1] * bits // 8)


def n_bits(bits: int, name: str, inner: int = 40, **inputs: Any) -> Case:
    """A call of MatMulNBits."""
    blocks = -(-inner // 16)
    given = {
        "A": f32(2, 3, inner),
        "B": nibbles(bits, 5, blocks, 16),
        "scales": columns(5, blocks),
        "zero_points": None,
        "g_idx": None,
        "bias": None,
    }
    stored = ["B", "scales", "zero_points"]
    return Case(
        "MatMulNBits",
        given | inputs,
        {"K": inner, "N": 5, "bits": bits, "block_size": 16},
        stored=stored,
        name=name,
    )


CASES += [
    n_bits(4, "4"),
    n_bits(8, "8"),
    n_bits(4, "zeros", zero_points=nibbles(4, 5, 4), bias=f32(5)),
    n_bits(4, "float-zeros", zero_points=columns(5, 3, low=7.0)),
    *(
        Case(
            "MatMulBnb4",
            {"A": f32(2, 32), "B": nibbles(4, 32 * 6), "absmax": columns(32 * 6 // 16)},
            {"K": 32, "N": 6, "block_size": 16, "quant_type": kind},
            stored=["B", "absmax"],
            name=str(kind),
        )
        for kind in (0, 1)
    ),
    Case(
        "GatherBlockQuantized",
        {
            "data": u8(9, 32),
            "indices": RANDOM.integers(0, 9, (2, 3)),
            "scales": columns(9, 4),
            "zero_points": u8(9, 2),
        },
        {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1},
        stored=["data", "scales", "zero_points"],
    ),
    Case(
        "GatherBlockQuantized",
        {"data": u8(9, 32), "indices": RANDOM.integers(0, 9, (2, 3)), "scales": columns(9, 2)},
        {"bits": 8, "block_size": 16, "gather_axis": 0, "quantize_axis": 1},
        stored=["data", "scales"],
        name="bytes",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_onnxruntime(case: Case) -> None:
    compare(case)


@pytest.mark.parametrize("case", [CASES[0], CASES[13], n_bits(4, "compiled")], ids=str)
def test_compiled(case: Case) -> None:
    compare(case, compiled=True)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_quantised_lstm_is_near_one_of_floats(direction: str) -> None:
    """ONNX Runtime rounds states to integers between steps; the result here is closer to that of the weights."""
    count = 2 if direction == "bidirectional" else 1
    w, r = i7(count, 3, 16), i7(count, 4, 16)
    scales = [np.full(count, 0.004, np.float32), np.full(count, 0.005, np.float32)]
    zeros = [np.zeros(count, np.int8)] * 2
    x, b = f32(5, 2, 3), f32(count, 32) * 0.1
    names = {"X": x, "W": w, "R": r, "B": b, "lengths": None, "h": None, "c": None, "P": None}
    names |= {"ws": scales[0], "wz": zeros[0], "rs": scales[1], "rz": zeros[1]}
    settings = {"hidden_size": 4, "direction": direction}
    stored = ["W", "R", "B", "ws", "wz", "rs", "rz"]
    case = Case("DynamicQuantizeLSTM", names, settings, 3, stored)
    ours = load_model(case.model(), engine=by_definition)(case.feeds())
    wide = [np.swapaxes(v * s[0], 1, 2).astype(np.float32) for v, s in zip((w, r), scales, strict=True)]
    plain = Case("LSTM", {"X": x, "W": wide[0], "R": wide[1], "B": b}, settings, 3, domain="")
    for mine, exact, theirs in zip(
        ours,
        onnxruntime_results(plain.model(), plain.feeds()),
        onnxruntime_results(case.model(), case.feeds()),
        strict=True,
    ):
        np.testing.assert_allclose(mine, exact, atol=1e-5)
        np.testing.assert_allclose(mine, theirs, atol=0.05)


@pytest.mark.parametrize("compiled", [False, True])
def test_products_of_large_bytes_are_exact(compiled: bool) -> None:
    a, b = np.full((3, 8), 255, np.uint8), np.full((8, 5), -128, np.int8)
    case = Case("MatMulIntegerToFloat", {"A": a, "B": b, "a_scale": scale(1), "b_scale": scale(1)})
    model = case.model()
    run = load_model(model) if compiled else load_model(model, engine=by_definition)
    np.testing.assert_array_equal(run(case.feeds())[0], np.full((3, 5), -255.0 * 128 * 8, np.float32))


def test_integers_are_multiplied_and_added_exactly() -> None:
    """Operators that ONNX Runtime documents but lacks on CPUs."""
    a, b = u8(2, 3), u8(3)
    case = Case("MulInteger", {"A": a, "az": zero(5), "B": b, "bz": zero(200)})
    (made,) = load_model(case.model(), engine=by_definition)(case.feeds())
    np.testing.assert_array_equal(made, (a.astype(np.int32) - 5) * (b.astype(np.int32) - 200))
    case = Case("ReduceSumInteger", {"data": a}, {"axes": [1], "keepdims": 0})
    (made,) = load_model(case.model(), engine=by_definition)(case.feeds())
    np.testing.assert_array_equal(made, a.astype(np.int32).sum(1))
