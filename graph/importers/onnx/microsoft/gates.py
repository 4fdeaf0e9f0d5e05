"""Gates, and norms of heads and branches, computed in f32, as in linear attention and hyper-connections."""

from __future__ import annotations

from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.read.composition import Body

FLOAT = int(TensorProto.FLOAT)


def wide(b: Body, x: str) -> str:
    """``x`` in f32."""
    return b.cast(x, FLOAT)


def silu(b: Body, x: str) -> str:
    """x sigmoid(x)."""
    return b("Mul", x, b("Sigmoid", x))


def _rms(b: Body, x: str, epsilon: float, scale: str = "") -> str:
    """``x`` over the root of the mean of its squares along the last axis, times ``scale`` if it is given."""
    mean = b("ReduceMean", b("Mul", x, x), b.ints(-1), keepdims=1)
    normal = b("Div", x, b("Sqrt", b("Add", mean, b.constant(epsilon, FLOAT))))
    return b("Mul", normal, scale) if scale else normal


@composed("GatedRMSNorm", "X:F scale:F gate:F -> Y:F", "activation:s epsilon:f")
def _gated_rms_norm(b: Body) -> None:
    kind = b.attr("activation", "silu")
    b.refuse(f"the activation {kind}", kind not in ("silu", "swish", "sigmoid"))
    width, rank = b.size("scale", 0), len(b.shape("X"))
    apart = b("Concat", b.sizes("X", 0, rank - 1), b.ints(-1, width), axis=0)
    normal = _rms(b, b("Reshape", wide(b, "X"), apart), b.attr("epsilon", 1e-5), wide(b, "scale"))
    gate = wide(b, "gate")
    gate = b("Sigmoid", gate) if kind == "sigmoid" else silu(b, gate)
    b.returns(b.cast(b("Mul", b("Reshape", normal, b.sizes("X", 0, rank)), gate), b.elem("X")))


@composed("GatedAdd", "X:F Y:F gate:F gate_weight:F? -> output:F")
def _gated_add(b: Body) -> None:
    b.refuse("a projection of its gate", b["gate_weight"])
    b.returns(b("Add", "X", b("Mul", "Y", "gate")))


@composed("ScaledSiLU", "X:F scale:F1? -> Y:F", "alpha:f")
def _scaled_silu(b: Body) -> None:
    factor = wide(b, "scale") if b["scale"] else b.constant(b.attr("alpha", 1.0), FLOAT)
    scaled = b.cast(b("Mul", wide(b, "X"), factor), b.elem("X"))
    gate = b.cast(b("Sigmoid", wide(b, scaled)), b.elem("X"))
    b.returns(b("Mul", scaled, gate))


@composed("LinearAttentionGate", "a:F dt_bias:f32 decay_scale:f32 b:F? -> decay:F beta:F?")
def _linear_attention_gate(b: Body) -> None:
    grown = b("Softplus", b("Add", wide(b, "a"), "dt_bias"))
    decay = b.cast(b("Mul", grown, "decay_scale"), b.elem("a"))
    b.returns(decay, b.cast(b("Sigmoid", wide(b, "b")), b.elem("a")) if b["b"] else "")


@composed(
    "EngramGate",
    "key:F query:F value:F key_norm_scale:F query_norm_scale:F conv_norm_scale:F? -> output:F gated_value_normed:F?",
    "epsilon:f",
)
def _engram_gate(b: Body) -> None:
    epsilon, elem = b.attr("epsilon", 1e-5), b.elem("key")
    sides = [_rms(b, wide(b, n), epsilon, wide(b, f"{n}_norm_scale")) for n in ("key", "query")]
    dot = b("ReduceSum", b("Mul", *sides), b.ints(-1), keepdims=1)
    dot = b("Mul", dot, b.constant(b.size("key", 3) ** -0.5, FLOAT))
    root = b("Sqrt", b("Max", b("Abs", dot), b.constant(1e-6, FLOAT)))
    gate = b("Sigmoid", b("Mul", b("Sign", dot), root))
    gated = b("Mul", gate, b("Unsqueeze", wide(b, "value"), b.ints(2)))
    normed = ""
    if b["conv_norm_scale"]:
        normed = b.cast(_rms(b, gated, epsilon, wide(b, "conv_norm_scale")), elem)
    b.returns(b.cast(gated, elem), normed)


def _branches(b: Body, name: str, count: int) -> str:
    """The input ``name`` in f32 as [..., branches, features]."""
    x = wide(b, name)
    rank = len(b.shape(name))
    return b("Reshape", x, b("Concat", b.sizes(name, 0, rank - 1), b.ints(count, -1), axis=0)) if count else x


@composed("BranchwiseRMSNorm", "X:F scale:F1? -> Y:F", "epsilon:f num_branches:i")
def _branchwise(b: Body) -> None:
    rank, count = len(b.shape("X")), int(b.attr("num_branches", 0))
    x = _branches(b, "X", count)
    normal = _rms(b, x, b.attr("epsilon", 1e-5))
    if b["scale"]:
        scale = wide(b, "scale")
        branches = count or b.size("X", rank - 2)
        width = b.size("X", rank - 1) // (count or 1)
        if len(b.shape("scale")) == 1 and b.size("scale", 0) != width:
            scale = b.reshape(scale, branches, width)
        normal = b("Mul", normal, scale)
    b.returns(b.cast(b("Reshape", normal, b.sizes("X", 0, rank)), b.elem("X")))


@composed("HyperConnectionPreMix", "streams:F pre_mix:F1 -> output:F", "num_branches:i reduction_scale:f")
def _pre_mix(b: Body) -> None:
    count, last = int(b.attr("num_branches", 0)), len(b.shape("streams")) - 1
    streams = _branches(b, "streams", count)
    rank = last + 1 + bool(count)
    width = b.size("streams", last) // (count or 1)
    branches = count or b.size("streams", last - 1)
    gate = wide(b, "pre_mix")
    given = len(b.shape("pre_mix"))
    if given != rank:
        features = width if b.size("pre_mix", given - 1) == branches * width else 1
        joined = b("Concat", b.sizes("pre_mix", 0, given - 1), b.ints(branches, features), axis=0)
        gate = b("Reshape", gate, joined)
    total = b("ReduceSum", b("Mul", streams, gate), b.ints(-2), keepdims=0)
    total = b("Mul", total, b.constant(b.attr("reduction_scale", 1.0), FLOAT))
    b.returns(b.cast(total, b.elem("streams")))


@composed("HyperConnectionPostMix", "streams:F block_output:F post_mix:F1 stream_mix:F1? -> output:F", "num_branches:i")
def _post_mix(b: Body) -> None:
    count, last = int(b.attr("num_branches", 0)), len(b.shape("streams")) - 1
    streams = _branches(b, "streams", count)
    rank = last + 1 + bool(count)
    gate = wide(b, "post_mix")
    if len(b.shape("post_mix")) != rank:
        gate = b("Unsqueeze", gate, b.ints(-1))
    added = b("Mul", gate, b("Unsqueeze", wide(b, "block_output"), b.ints(-2)))
    if b["stream_mix"]:
        mix = wide(b, "stream_mix")
        order = [*range(rank - 2), rank - 1, rank - 2]
        streams = b("MatMul", b("Transpose", mix, perm=order), streams)
    made = b("Reshape", b("Add", streams, added), b.sizes("streams", 0, last + 1))
    b.returns(b.cast(made, b.elem("streams")))
