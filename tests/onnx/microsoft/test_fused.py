"""ONNX Runtime's fused operators against ONNX Runtime itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx.rival import Array, Case, compare

pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(20)


def f32(*shape: int) -> Array:
    """Normal numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(high: int, *shape: int, dtype: type = np.int32) -> Array:
    """Integers below ``high``."""
    return RANDOM.integers(0, high, shape).astype(dtype)


WINDOW = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
CONV = {"X": f32(1, 4, 6, 7), "W": f32(5, 4, 3, 3), "B": f32(5)}
CASES = [
    Case("Gelu", {"X": f32(2, 9)}),
    Case("FastGelu", {"X": f32(2, 3, 8), "bias": f32(8)}),
    Case("FastGelu", {"X": f32(2, 3, 8)}, name="plain"),
    Case("BiasGelu", {"A": f32(2, 3, 8), "B": f32(8)}),
    Case("QuickGelu", {"X": f32(2, 9)}),
    Case("QuickGelu", {"X": f32(2, 9)}, {"alpha": 0.5}, name="alpha"),
    Case("FusedMatMul", {"A": f32(2, 3, 4), "B": f32(2, 5, 4)}, {"transB": 1, "alpha": 0.25}),
    Case("FusedMatMul", {"A": f32(4, 3), "B": f32(4, 5)}, {"transA": 1}, name="transA"),
    Case("FusedMatMul", {"A": f32(3, 2, 4), "B": f32(2, 4, 5)}, {"transBatchA": 1}, name="batchA"),
    Case("FusedMatMul", {"A": f32(2, 3, 4), "B": f32(5, 2, 4)}, {"transBatchB": 1, "transB": 1}, name="batchB"),
    Case("TransposeMatMul", {"A": f32(2, 4, 3), "B": f32(2, 4, 5)}, {"transA": 1}),
    Case("FusedGemm", {"A": f32(3, 4), "B": f32(5, 4), "C": f32(5)}, {"transB": 1, "activation": "Relu", "beta": 0.5}),
    Case(
        "FusedGemm",
        {"A": f32(3, 4), "B": f32(4, 5), "C": None},
        {"activation": "LeakyRelu", "activation_alpha": 0.2},
        name="leaky",
    ),
    Case("FusedConv", CONV, {**WINDOW, "activation": "Relu"}),
    Case("FusedConv", CONV, {**WINDOW, "activation": "LeakyRelu", "activation_params": [0.3]}, name="leaky"),
    Case("FusedConv", CONV, {**WINDOW, "activation": "Clip", "activation_params": [0.0, 6.0]}, name="clip"),
    Case("FusedConv", CONV, {**WINDOW, "activation": "HardSigmoid", "activation_params": [0.2, 0.5]}, name="hard"),
    Case("FusedConv", {**CONV, "Z": f32(1, 5, 6, 7)}, {**WINDOW, "activation": "Relu"}, name="sum"),
    Case("LayerNormalization", {"X": f32(2, 3, 8), "Scale": f32(8), "B": f32(8)}, {"axis": -1}, domain=""),
    Case("SimplifiedLayerNormalization", {"X": f32(2, 3, 8), "scale": f32(8)}, {"axis": -1}, domain=""),
    Case(
        "SkipLayerNormalization",
        {"input": f32(2, 3, 8), "skip": f32(2, 3, 8), "gamma": f32(8), "beta": f32(8), "bias": f32(8)},
        {"epsilon": 1e-5},
    ),
    Case(
        "SkipLayerNormalization",
        {"input": f32(2, 3, 8), "skip": f32(3, 8), "gamma": f32(8), "beta": None},
        name="broadcast",
    ),
    Case(
        "SkipSimplifiedLayerNormalization",
        {"input": f32(2, 3, 8), "skip": f32(2, 3, 8), "gamma": f32(8), "bias": f32(8)},
        {"epsilon": 1e-6},
    ),
    Case(
        "EmbedLayerNormalization",
        {
            "input_ids": ints(20, 2, 5),
            "segment_ids": ints(2, 2, 5),
            "word_embedding": f32(20, 8),
            "position_embedding": f32(7, 8),
            "segment_embedding": f32(2, 8),
            "gamma": f32(8),
            "beta": f32(8),
            "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
        },
        {"epsilon": 1e-5},
        results=2,
    ),
    Case(
        "EmbedLayerNormalization",
        {
            "input_ids": ints(20, 2, 5),
            "segment_ids": None,
            "word_embedding": f32(20, 8),
            "position_embedding": f32(7, 8),
            "segment_embedding": None,
            "gamma": f32(8),
            "beta": f32(8),
            "mask": None,
            "position_ids": ints(7, 1, 5),
        },
        results=2,
        name="positions",
    ),
    Case(
        "RotaryEmbedding",
        {
            "input": f32(2, 3, 16),
            "position_ids": ints(9, 2, 3, dtype=np.int64),
            "cos_cache": f32(9, 4),
            "sin_cache": f32(9, 4),
        },
    ),
    Case(
        "RotaryEmbedding",
        {
            "input": f32(2, 2, 3, 8),
            "position_ids": np.array([4], np.int64),
            "cos_cache": f32(9, 4),
            "sin_cache": f32(9, 4),
        },
        {"interleaved": 1},
        name="offset",
    ),
    Case(
        "RotaryEmbedding",
        {
            "input": f32(2, 3, 16),
            "position_ids": ints(9, 2, 3, dtype=np.int64),
            "cos_cache": f32(9, 2),
            "sin_cache": f32(9, 2),
        },
        {"num_heads": 2, "rotary_embedding_dim": 4},
        name="part",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_onnxruntime(case: Case) -> None:
    compare(case)


@pytest.mark.parametrize("case", [CASES[1], CASES[15], CASES[-6]], ids=str)
def test_compiled(case: Case) -> None:
    compare(case, compiled=True)
