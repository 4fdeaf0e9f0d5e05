"""Linear attention, its gates, and norms of branches, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx.rival import Array, Case, compare

pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(6)
B, T, H, K, V = 2, 5, 4, 3, 6


def f32(*shape: int) -> Array:
    """Normal numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def tokens(queries: int, keys: int, decay: int = H) -> dict[str, Array | None]:
    """Inputs of LinearAttention; keys have length 1."""
    k = f32(B, T, keys, K)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return {
        "query": f32(B, T, queries * K),
        "key": k.reshape(B, T, -1),
        "value": f32(B, T, keys * V),
        "past_state": f32(B, keys, K, V),
        "decay": -np.abs(f32(B, T, decay)),
        "beta": np.abs(f32(B, T, keys)) / 4,
    }


def rule(name: str, inputs: dict[str, Array | None], *absent: str, **attributes: Any) -> Case:
    given = {k: None if k in absent else v for k, v in inputs.items()}
    heads = {"q_num_heads": inputs["query"].shape[2] // K, "kv_num_heads": inputs["value"].shape[2] // V}  # type: ignore[union-attr]
    label = "-".join([name, *absent, *map(str, heads.values())])
    return Case(
        "LinearAttention", given, {"update_rule": name, **heads, **attributes}, results=2, name=label, near=1e-4
    )


CONV: dict[str, Array | None] = {
    "input": f32(2, 6, 9),
    "weight": f32(6, 1, 4),
    "bias": f32(6),
    "past_state": f32(2, 6, 3),
}
SPARSE = {**CONV, "past_state": f32(2, 6, 6)}
LAST: dict[str, Array | None] = {**CONV, "input": f32(2, 9, 6), "past_state": f32(2, 3, 6)}
STREAMS: dict[str, Array | None] = {"streams": f32(2, 5, 3, 8), "pre_mix": f32(2, 5, 3)}
POST: dict[str, Array | None] = {
    "streams": f32(2, 5, 3, 8), "block_output": f32(2, 5, 8), "post_mix": f32(2, 5, 3), "stream_mix": f32(2, 5, 3, 3)
}  # fmt: skip
ENGRAM: dict[str, Array | None] = {
    "key": f32(2, 3, 2, 8), "query": f32(2, 3, 2, 8), "value": f32(2, 3, 8), "key_norm_scale": f32(2, 8),
    "query_norm_scale": f32(2, 8), "conv_norm_scale": f32(2, 8),
}  # fmt: skip
HEADS: dict[str, Any] = {"num_heads": 4}
POSITIONS = RANDOM.integers(0, 20, (3, 2, 5))
TURNED: dict[str, Array | None] = {
    "input": f32(2, 5, 4 * 12), "position_ids": POSITIONS, "cos_cache": f32(20, 6), "sin_cache": f32(20, 6)
}  # fmt: skip
CASES = [
    rule("linear", tokens(H, H), "decay", "beta"),
    rule("linear", tokens(H, H), "past_state", "decay", "beta"),
    rule("gated", tokens(H, H), "beta", scale=0.5),
    rule("gated", tokens(H, H, H * K), "beta"),
    rule("delta", tokens(H, H), "decay"),
    rule("gated_delta", tokens(H, H)),
    rule("gated_delta", tokens(2 * H, H)),
    Case("CausalConvWithState", CONV, results=2),
    Case("CausalConvWithState", {**CONV, "past_state": None}, {"activation": "silu"}, results=2, name="silu"),
    Case("CausalConvWithState", SPARSE, {"dilation": 2}, results=2, name="dilated"),
    Case("CausalConvWithState", LAST, {"channels_last": 1}, results=2, name="last"),
    Case("GatedRMSNorm", {"X": f32(2, 3, 8), "scale": f32(4), "gate": f32(2, 3, 8)}),
    Case(
        "GatedRMSNorm", {"X": f32(3, 8), "scale": f32(8), "gate": f32(3, 8)}, {"activation": "sigmoid"}, name="sigmoid"
    ),
    Case("GatedAdd", {"X": f32(2, 3, 8), "Y": f32(2, 3, 8), "gate": f32(2, 3, 1)}),
    Case("ScaledSiLU", {"X": f32(2, 8)}, {"alpha": 1.5}),
    Case(
        "LinearAttentionGate",
        {"a": f32(2, 3, 4), "dt_bias": f32(4), "decay_scale": f32(4), "b": f32(2, 3, 4)},
        results=2,
    ),
    Case("BranchwiseRMSNorm", {"X": f32(2, 3, 8), "scale": f32(3, 8)}),
    Case("BranchwiseRMSNorm", {"X": f32(2, 24), "scale": f32(24)}, {"num_branches": 3}, name="flat"),
    Case("HyperConnectionPreMix", STREAMS, {"reduction_scale": 0.5}),
    Case("HyperConnectionPreMix", {"streams": f32(2, 24), "pre_mix": f32(2, 24)}, {"num_branches": 3}, name="flat"),
    Case("HyperConnectionPostMix", POST),
    Case("HyperConnectionPostMix", {**POST, "stream_mix": None}, name="identity"),
    Case("EngramGate", ENGRAM, results=2),
    Case("MRotaryEmbedding", TURNED, HEADS | {"mrope_section": [3, 2, 1]}),
    Case("MRotaryEmbedding", TURNED, HEADS | {"mrope_section": [2, 2, 2], "mrope_layout": 1}, name="interleaved"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_onnxruntime(case: Case) -> None:
    compare(case)
