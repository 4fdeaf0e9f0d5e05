"""Mixtures of experts: each token's result is a weighted sum of the results of its best experts.

All experts see all tokens, and results of experts that were not chosen are dropped: no size depends on data, at the
price of products that are not needed.
"""

from __future__ import annotations

import math

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.microsoft.few_bits import unpacked
from taskmap.graph.importers.onnx.read.composition import Body

_SETTINGS = (
    "k:i activation_type:s normalize_routing_weights:i use_sparse_mixer:i activation_alpha:f activation_beta:f "
    "swiglu_fusion:i swiglu_limit:f swiglu_limit_after_activation:i"
)


@composed(
    "MoE",
    "input:F router_probs:F fc1_experts_weights:F fc1_experts_bias:F? fc2_experts_weights:F fc2_experts_bias:F? "
    "fc3_experts_weights:F? fc3_experts_bias:F? -> output:F",
    _SETTINGS,
)
def _experts(b: Body) -> None:
    weights = [b[f"fc{i}_experts_weights"] for i in (1, 2, 3)]
    b.returns(mixed(b, weights, [b[f"fc{i}_experts_bias"] for i in (1, 2, 3)]))


@composed(
    "QMoE",
    "input:F router_probs:F fc1_experts_weights:u8 fc1_scales:F1? fc1_experts_bias:F? fc2_experts_weights:u8 "
    "fc2_scales:F1? fc2_experts_bias:F? fc3_experts_weights:u8? fc3_scales:F1? fc3_experts_bias:F? "
    "fc1_zero_points:u8? fc2_zero_points:u8? fc3_zero_points:u8? router_weights:F? fc1_global_scale:A? "
    "fc2_global_scale:A? fc1_act_scale:A? fc2_act_scale:A? fc1_act_block_scale:A? fc2_act_block_scale:A? -> output:F",
    f"{_SETTINGS} expert_weight_bits:i fc1_expert_weight_bits:i fc2_expert_weight_bits:i fc3_expert_weight_bits:i "
    "block_size:i quant_type:s weights_prepacked:i accuracy_level:i",
)
def _quantised_experts(b: Body) -> None:
    b.refuse(f"weights of the kind {b.attr('quant_type', 'int')}", b.attr("quant_type", "int") != "int")
    b.refuse("weights in another layout", b.attr("weights_prepacked", -1) == 1)
    weights = [_numbers(b, i) for i in (1, 2, 3)]
    b.returns(mixed(b, weights, [b[f"fc{i}_experts_bias"] for i in (1, 2, 3)]))


def _numbers(b: Body, layer: int) -> str:
    """The weights of a layer as numbers, [experts, results, inputs]; empty if there is none."""
    packed, scales, zeros = (b[f"fc{layer}_{n}"] for n in ("experts_weights", "scales", "zero_points"))
    if not packed:
        return ""
    bits = int(b.attr(f"fc{layer}_expert_weight_bits", b.attr("expert_weight_bits", 4)))
    b.refuse(f"{bits} bits", bits not in (2, 4, 8))
    b.refuse("weights without scales", not scales)
    elem, block = b.elem("input"), int(b.attr("block_size", 0))
    experts, results = b.size(packed, 0), b.size(packed, 1)
    inner = b.size(packed, 2) * 8 // bits
    blocks = inner // block if block > 0 else 1
    if block > 0 and inner % block:
        raise b.call.error(f"rows of {inner} weights in blocks of {block}")
    wide = [experts, results, blocks, 1]
    zero = b.constant(float(1 << (bits - 1)), elem)
    if zeros:
        listed = unpacked(b, zeros, bits)
        listed = b.slice(listed, 2, 0, blocks) if block > 0 else b.slice(listed, 1, 0, results)
        zero = b.reshape(b.cast(listed, elem), *wide)
    weight = b.reshape(b.cast(unpacked(b, packed, bits), elem), experts, results, blocks, -1)
    scaled = b("Mul", b("Sub", weight, zero), b.reshape(b.cast(scales, elem), *wide))
    return b.reshape(scaled, experts, results, inner)


def mixed(b: Body, weights: list[str], biases: list[str]) -> str:
    """The result for three layers of weights [experts, results, inputs] with biases [experts, results] or without."""
    b.refuse("use_sparse_mixer", b.attr("use_sparse_mixer", 0))
    b.refuse("swiglu_limit_after_activation", b.attr("swiglu_limit_after_activation", 0))
    tokens = b.reshape("input", -1, b.size("input", -1))
    hidden = _activated(b, tokens, weights, biases)
    results = _layer(b, hidden, weights[1], biases[1])
    shares = b("Unsqueeze", b("Transpose", _shares(b), perm=[1, 0]), b.ints(-1))
    nothing = b.number(0.0, "input")
    taken = b("Where", b("Equal", shares, nothing), nothing, b("Mul", results, shares))  # 0 times infinity is not 0
    total = b("ReduceSum", taken, b.ints(0), keepdims=0)
    return b("Reshape", total, b("Shape", "input"))


def _shares(b: Body) -> str:
    """The weight of each expert for each token, [tokens, experts]: 0 for experts that are not among the best."""
    likely = b("Softmax", "router_probs", axis=-1)
    top, places = b.several(2, "TopK", likely, b.ints(int(b.attr("k", 1))), axis=-1)
    if b["router_weights"]:
        top = b("GatherElements", "router_weights", places, axis=1)
    if b.attr("normalize_routing_weights", 0):
        top = b("Div", top, b("ReduceSum", top, b.ints(-1), keepdims=1))
    nothing = b("Expand", b.number(0.0, "router_probs"), b("Shape", likely))
    return b("ScatterElements", nothing, places, top, axis=1)


def _layer(b: Body, x: str, weights: str, bias: str) -> str:
    """``x`` [tokens, inputs] or [experts, tokens, inputs] through one layer of every expert."""
    product = b("MatMul", x, b("Transpose", weights, perm=[0, 2, 1]))
    return b("Add", product, b("Unsqueeze", bias, b.ints(1))) if bias else product


def _activated(b: Body, tokens: str, weights: list[str], biases: list[str]) -> str:
    """The values between the layers, [experts, tokens, inputs of the second layer]."""
    name, first = b.attr("activation_type", "relu"), _layer(b, tokens, weights[0], biases[0])
    if name == "swiglu":
        return _gated(b, tokens, first, weights[2], biases[2])
    b.refuse("a third layer", bool(weights[2]))
    if name == "relu":
        return b("Relu", first)
    if name == "gelu":
        return b("Gelu", first, approximate="tanh")
    if name == "silu":
        return b("Mul", first, b("Sigmoid", first))
    b.refuse(f"the activation {name}", name != "identity")
    return first


def _gated(b: Body, tokens: str, first: str, third: str, bias: str) -> str:
    """clamp(g) * sigmoid(alpha clamp(g)) * (clamp(l) + beta); of two layers, of neighbours, or of two halves."""
    fusion = int(b.attr("swiglu_fusion", 0))
    b.refuse("a gate that is both in its first layer and a third one", bool(fusion) == bool(third))
    if third:
        gate, linear = first, _layer(b, tokens, third, bias)
    else:
        wide = b.size("fc1_experts_weights", 1)
        stride = 2 if fusion == 1 else 1
        starts = (0, 1) if fusion == 1 else (0, wide // 2)
        ends = (wide, wide) if fusion == 1 else (wide // 2, wide)
        gate, linear = (
            b("Slice", first, b.ints(low), b.ints(high), b.ints(-1), b.ints(stride))
            for low, high in zip(starts, ends, strict=True)
        )
    limit = b.attr("swiglu_limit", math.inf)
    if math.isfinite(limit):
        high, low = b.number(limit, "input"), b.number(-limit, "input")
        gate, linear = b("Min", gate, high), b("Clip", linear, low, high)
    scaled = b("Mul", gate, b.number(b.attr("activation_alpha", 1.0), "input"))
    shifted = b("Add", linear, b.number(b.attr("activation_beta", 0.0), "input"))
    return b("Mul", b("Mul", gate, b("Sigmoid", scaled)), shifted)
