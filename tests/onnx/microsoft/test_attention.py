"""ONNX Runtime's attention operators against ONNX Runtime itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.rival import Array, Case, compare

pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(21)


def f32(*shape: int) -> Array:
    """Normal numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def i32(*values: Any) -> Array:
    """An array of these integers."""
    return np.array(values, np.int32)


PACKED = {"input": f32(2, 4, 8), "weights": f32(8, 24), "bias": f32(24)}
LEFT = i32([0, 1, 1, 1], [1, 1, 1, 1])
RIGHT = i32([1, 1, 1, 0], [1, 1, 1, 1])
CUBE = RANDOM.integers(0, 2, (2, 4, 4)).astype(np.int32) | np.eye(4, dtype=np.int32)
TWO: dict[str, Any] = {"num_heads": 2}
CASES = [
    Case("Attention", PACKED, TWO),
    Case("Attention", PACKED, {**TWO, "unidirectional": 1, "scale": 0.3}, name="causal"),
    Case("Attention", {**PACKED, "mask_index": RIGHT}, TWO, name="mask"),
    Case("Attention", {**PACKED, "mask_index": CUBE}, TWO, name="mask3"),
    Case("Attention", {**PACKED, "mask_index": i32(3, 4)}, TWO, name="lengths"),
    Case("Attention", {**PACKED, "mask_index": i32(4, 3, 1, 0)}, TWO, name="starts"),
    Case(
        "Attention",
        {"input": f32(2, 4, 8), "weights": f32(8, 28), "bias": f32(28)},
        {**TWO, "qkv_hidden_sizes": [8, 8, 12]},
        name="sizes",
    ),
    Case(
        "Attention",
        {**PACKED, "mask_index": None, "past": f32(2, 2, 2, 3, 4)},
        {**TWO, "unidirectional": 1},
        results=2,
        name="past",
    ),
    Case(
        "Attention",
        {**PACKED, "mask_index": i32([0, 1, 1, 1, 1, 1, 1], [1] * 7), "past": f32(2, 2, 2, 3, 4)},
        {**TWO, "unidirectional": 1},
        results=2,
        name="past-mask",
    ),
    Case("MultiHeadAttention", {"query": f32(2, 3, 8), "key": f32(2, 5, 8), "value": f32(2, 5, 12)}, TWO),
    Case(
        "MultiHeadAttention",
        {"query": f32(2, 3, 8), "key": f32(2, 5, 8), "value": f32(2, 5, 12), "bias": f32(28)},
        {**TWO, "scale": 0.2},
        name="bias",
    ),
    Case(
        "Attention",
        {**PACKED, "mask_index": None, "past": None, "attention_bias": f32(1, 2, 4, 4)},
        TWO,
        name="bias",
    ),
    Case(
        "MultiHeadAttention",
        {"query": f32(2, 3, 8), "key": f32(2, 2, 5, 4), "value": f32(2, 2, 5, 4)},
        TWO,
        name="projected",
    ),
    Case(
        "MultiHeadAttention",
        {
            "query": f32(2, 3, 8),
            "key": f32(2, 5, 8),
            "value": f32(2, 5, 8),
            "bias": None,
            "key_padding_mask": i32([1, 1, 1, 0, 0], [1] * 5),
            "attention_bias": f32(1, 2, 3, 5),
        },
        TWO,
        name="mask",
    ),
    Case(
        "MultiHeadAttention",
        {
            "query": f32(2, 3, 8),
            "key": f32(2, 5, 8),
            "value": f32(2, 5, 8),
            "bias": None,
            "key_padding_mask": i32(2, 5),
        },
        TWO,
        name="lengths",
    ),
    Case(
        "MultiHeadAttention",
        {
            "query": f32(2, 1, 8),
            "key": f32(2, 1, 8),
            "value": f32(2, 1, 8),
            "bias": None,
            "key_padding_mask": None,
            "attention_bias": None,
            "past_key": f32(2, 2, 4, 4),
            "past_value": f32(2, 2, 4, 4),
        },
        {**TWO, "unidirectional": 1},
        results=3,
        name="past",
    ),
]

GROUPS: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}
TABLES = {"cos_cache": f32(16, 8), "sin_cache": f32(16, 8)}
SIZE = 16


def group(name: str, inputs: dict[str, Any], lengths: list[int], total: int, **attributes: Any) -> Case:
    """A call of GroupQueryAttention with three results."""
    size, length = SIZE, inputs.pop("length", 3)
    batch = len(lengths)
    given = {
        "query": f32(batch, length, 4 * size),
        "key": f32(batch, length, 2 * size),
        "value": f32(batch, length, 2 * size),
        "past_key": None,
        "past_value": None,
        "seqlens_k": i32(*(n - 1 for n in lengths)),
        "total_sequence_length": np.array([total], np.int32),
        "cos_cache": None,
        "sin_cache": None,
        "position_ids": None,
        "attention_bias": None,
        "head_sink": None,
    }
    return Case("GroupQueryAttention", given | inputs, GROUPS | attributes, 3, ["total_sequence_length"], name=name)


def past(batch: int, length: int) -> dict[str, Array]:
    """A cache."""
    return {"past_key": f32(batch, 2, length, SIZE), "past_value": f32(batch, 2, length, SIZE)}


CASES += [
    group("prompt", {}, [3, 3], 3),
    group("rotated", dict(TABLES), [3, 3], 3, do_rotary=1),
    group("packed", {"query": f32(2, 3, 8 * SIZE), "key": None, "value": None, **TABLES}, [3, 3], 3, do_rotary=1),
    group("token", {"length": 1, **past(2, 5), **TABLES}, [6, 6], 6, do_rotary=1, rotary_interleaved=1),
    replace(group("buffer", {"length": 1, **past(2, 9), **TABLES}, [6, 6], 6, do_rotary=1), compared=1),
    group("chunk", {"length": 2, **past(1, 5)}, [7], 7),
    group("window", {"length": 1, **past(2, 5)}, [6, 6], 6, local_window_size=3),
    group("window-prompt", {"length": 5}, [5, 5], 5, local_window_size=2),
    group("capped", {"length": 1, **past(2, 5)}, [6, 6], 6, softcap=2.0, scale=0.7),
    group("smooth", {"length": 1, **past(2, 5)}, [6, 6], 6, smooth_softmax=1),
    group("sink", {"length": 1, **past(2, 5), "head_sink": f32(4)}, [6, 6], 6),
    group("biased", {"length": 1, **past(2, 5), "attention_bias": f32(1, 4, 1, 6)}, [6, 6], 6),
    group("placed", {**TABLES, "position_ids": np.array([[0, 1, 2]] * 2)}, [3, 3], 3, do_rotary=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_onnxruntime(case: Case) -> None:
    compare(case)


def test_rows_of_different_lengths() -> None:
    """A row shorter than the cache: its next key goes after its last one."""
    case = group("ragged", {"length": 1, **past(2, 5), **TABLES}, [6, 4], 6, do_rotary=1)
    compare(replace(case, compared=1))


def test_packed_queries_keys_and_values() -> None:
    """ONNX Runtime has them only on GPUs, so the expected result is composed of their parts."""
    q, kv = f32(2, 3, 8), f32(2, 5, 2, 2, 4)
    k, v = (np.ascontiguousarray(kv[:, :, :, i]).reshape(2, 5, 8) for i in range(2))
    whole = Case("MultiHeadAttention", {"query": q, "key": kv}, TWO)
    parts = Case("MultiHeadAttention", {"query": q, "key": k, "value": v}, TWO)
    np.testing.assert_allclose(*(load_model(c.model(), engine=by_definition)(c.feeds())[0] for c in (whole, parts)))
    qkv = f32(2, 3, 2, 3, 4)
    q, k, v = (np.ascontiguousarray(qkv[:, :, :, i]).reshape(2, 3, 8) for i in range(3))
    whole = Case("MultiHeadAttention", {"query": qkv}, TWO)
    parts = Case("MultiHeadAttention", {"query": q, "key": k, "value": v}, TWO)
    np.testing.assert_allclose(*(load_model(c.model(), engine=by_definition)(c.feeds())[0] for c in (whole, parts)))


@pytest.mark.parametrize("case", [CASES[1], CASES[-4]], ids=str)
def test_compiled(case: Case) -> None:
    compare(case, compiled=True)
