"""Mixtures of experts against ONNX Runtime, with weights in floats and in few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskmap.errors import UnsupportedError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.rival import Array, Case, compare

pytest.importorskip("onnxruntime")
TOKENS, EXPERTS = 5, 4


def f32(draw: np.random.Generator, *shape: int) -> Array:
    return draw.standard_normal(shape).astype(np.float32)


def experts(name: str, activation: str, bias: bool = True, **settings: Any) -> Case:
    draw = np.random.default_rng(len(name))
    width, inner = 8, 16
    first = inner * (2 if activation == "swiglu" else 1)
    inputs = {
        "input": f32(draw, TOKENS, width),
        "router_probs": f32(draw, TOKENS, EXPERTS),
        "w1": f32(draw, EXPERTS, first, width),
        "b1": f32(draw, EXPERTS, first) if bias else None,
        "w2": f32(draw, EXPERTS, width, inner),
        "b2": f32(draw, EXPERTS, width) if bias else None,
    }
    fusion = {"swiglu_fusion": 1} if activation == "swiglu" else {}
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    attributes = {"k": 2, "activation_type": activation, **fusion, **settings}
    return Case("MoE", inputs, attributes, name=name, stored=("w1", "b1", "w2", "b2"))


def few_bits(
    name: str, bits: int, block: int, activation: str = "relu", zeros: bool = False, own: bool = False
) -> Case:
    draw = np.random.default_rng(len(name))
    width, inner = 32, 64

    def layer(results: int, columns: int) -> tuple[Array, Array, Array | None]:
        shape = (EXPERTS, results, columns // block) if block else (EXPERTS, results)
        scales = (draw.uniform(0.5, 1, shape) / 2 ** (bits - 1)).astype(np.float32)
        packed = (*shape[:-1], -(-shape[-1] * bits // 8))
        zero = draw.integers(0, 256, packed).astype(np.uint8) if zeros else None
        return draw.integers(0, 256, (EXPERTS, results, columns * bits // 8)).astype(np.uint8), scales, zero

    first = inner * (2 if activation == "swiglu" else 1)
    (w1, s1, z1), (w2, s2, z2) = layer(first, width), layer(width, inner)
    inputs = {
        "input": f32(draw, TOKENS, width),
        "router_probs": f32(draw, TOKENS, EXPERTS),
        "w1": w1,
        "s1": s1,
        "b1": f32(draw, EXPERTS, first),
        "w2": w2,
        "s2": s2,
        "b2": f32(draw, EXPERTS, width),
        "w3": None,
        "s3": None,
        "b3": None,
        "z1": z1,
        "z2": z2,
        "z3": None,
        "router_weights": np.abs(f32(draw, TOKENS, EXPERTS)) if own else None,
    }
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    attributes: dict[str, Any] = {"k": 2, "activation_type": activation, "expert_weight_bits": bits}
    attributes |= {"normalize_routing_weights": 1, **({"block_size": block} if block else {})}
    attributes |= {"swiglu_fusion": 1} if activation == "swiglu" else {}
    return Case("QMoE", inputs, attributes, name=name, stored=("w1", "s1", "b1", "w2", "s2", "b2", "z1", "z2"))


CASES = [
    *(experts(name, name) for name in ("relu", "gelu", "silu", "identity", "swiglu")),
    experts("one", "relu", k=1),
    experts("normalised", "silu", normalize_routing_weights=1),
    experts("unbiased", "gelu", bias=False),
    experts("limited", "swiglu", activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.7),
    few_bits("columns", 4, 0),
    few_bits("bytes", 8, 0, "silu"),
    few_bits("blocks", 4, 16),
    few_bits("gated blocks", 4, 32, "swiglu"),
    few_bits("zero points", 4, 16, zeros=True),
    few_bits("zero points of columns", 4, 0, zeros=True),
    few_bits("two bits", 2, 16),
    few_bits("weights of the router's", 4, 16, own=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_onnxruntime(case: Case) -> None:
    compare(case)


def test_compiled() -> None:
    compare(experts("compiled", "gelu"), compiled=True)


def results(case: Case) -> Array:
    made: Array = load_model(case.model(), engine=by_definition)(case.feeds())[0]
    return made


@pytest.mark.parametrize("fusion", [0, 2])
def test_the_gate_may_lie_elsewhere(fusion: int) -> None:
    """In a third layer, or in the first half, as documented; ONNX Runtime has neither on a CPU."""
    neighbours = experts("where", "swiglu")
    inputs = dict(neighbours.inputs)
    for name in ("w1", "b1"):
        whole = inputs[name]
        assert whole is not None
        gate, linear = whole[:, ::2], whole[:, 1::2]
        if fusion == 2:
            inputs[name] = np.concatenate([gate, linear], 1)
        else:
            inputs[name], inputs[name.replace("1", "3")] = gate, linear
    attributes = {**neighbours.attributes, "swiglu_fusion": fusion}
    np.testing.assert_allclose(results(Case("MoE", inputs, attributes)), results(neighbours), rtol=1e-5, atol=1e-5)


def test_an_expert_that_overflows_matters_only_where_it_is_chosen() -> None:
    case = experts("overflow", "relu", k=1)
    w1, router = case.inputs["w1"], case.inputs["router_probs"]
    assert w1 is not None
    assert router is not None
    w1[0] = np.inf
    chosen = router.argmax(1) == 0
    assert 0 < chosen.sum() < TOKENS
    assert np.isfinite(results(case)).all(1).tolist() == (~chosen).tolist()


def test_what_is_not_documented_for_a_cpu_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="use_sparse_mixer"):
        results(experts("refused", "relu", use_sparse_mixer=1))
    with pytest.raises(UnsupportedError, match="geglu"):
        results(experts("refused", "geglu"))
    case = few_bits("refused", 4, 16)
    for change, message in (({"quant_type": "fp4"}, "fp4"), ({"weights_prepacked": 1}, "another layout")):
        with pytest.raises(UnsupportedError, match=message):
            results(Case("QMoE", case.inputs, {**case.attributes, **change}, stored=case.stored))
