"""Normalisation fused with the sum or the embeddings before it."""

from __future__ import annotations

from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.microsoft.convolutions import channels_first, channels_last
from taskmap.graph.importers.onnx.read.composition import Body

FLOAT, INT32 = int(TensorProto.FLOAT), int(TensorProto.INT32)


@composed(
    "LayerNormalization", "X:F Scale:F1 B:F1? -> Y:F1 Mean:F2? InvStdDev:F2?", "axis:i epsilon:f stash_type:i", ""
)
def _layer_norm(b: Body) -> None:
    """LayerNormalization of opset 17, which ONNX Runtime's optimiser also writes into models of older opsets."""
    b.refuse("a scale of another type", b.elem("Scale") != b.elem("X"))
    settings = {"axis": int(b.attr("axis", -1)), "epsilon": b.attr("epsilon", 1e-5)}
    b.returns(*b.several(b.call.outputs, "LayerNormalization", "X", "Scale", b["B"], **settings))


@composed("SimplifiedLayerNormalization", "X:F scale:F1 -> Y:F1 inv_std_var:F2?", "axis:i epsilon:f stash_type:i", "")
def _simplified(b: Body) -> None:
    axis = b.call.axis(b.attr("axis", -1), len(b.shape("X")))
    x = b.cast("X", b.elem("scale")) if b.elem("X") != b.elem("scale") else "X"
    b.returns(b("RMSNormalization", x, "scale", axis=axis, epsilon=b.attr("epsilon", 1e-5)), "")


_SUM = "mean:F1? inv_std_var:F1? input_skip_bias_sum:F?"


@composed("SkipLayerNormalization", f"input:F skip:F gamma:F beta:F? bias:F? -> output:F {_SUM}", "epsilon:f")
def _skip(b: Body) -> None:
    total = b.plus(b("Add", "input", "skip"), b["bias"])
    epsilon = b.attr("epsilon", 1e-12)
    b.returns(b("LayerNormalization", total, "gamma", b["beta"], axis=-1, epsilon=epsilon), "", "", total)


@composed("SkipSimplifiedLayerNormalization", f"input:F skip:F gamma:F bias:F? -> output:F {_SUM}", "epsilon:f")
def _skip_simplified(b: Body) -> None:
    total = b.plus(b("Add", "input", "skip"), b["bias"])
    b.returns(b("RMSNormalization", total, "gamma", axis=-1, epsilon=b.attr("epsilon", 1e-12)), "", "", total)


def embedded(b: Body, word: str, position: str, segment: str) -> tuple[str, str]:
    """The sum of the rows of three tables, and the number of words that each row of the mask admits."""
    length = b.sizes("input_ids", 1, 2)
    total = b("Gather", word, "input_ids")
    if b["position_ids"]:
        total = b("Add", total, b("Gather", position, "position_ids"))
    else:
        total = b("Add", total, b.slice(position, 0, 0, length))
    if b["segment_ids"] and segment:
        total = b("Add", total, b("Gather", segment, "segment_ids"))
    if b["mask"]:
        words = b("ReduceSum", b.cast(b("Equal", "mask", b.number(1, "mask")), INT32), b.ints(1), keepdims=0)
    else:
        words = b("Expand", b.constant([0], INT32), b.sizes("input_ids", 0, 1))
    return total, words


@composed(
    "EmbedLayerNormalization",
    "input_ids:I segment_ids:I? word_embedding:F position_embedding:F segment_embedding:F? gamma:F beta:F mask:I? "
    "position_ids:I? -> output:F mask_index:i32? embedding_sum:F?",
    "epsilon:f mask_index_type:i",
)
def _embed(b: Body) -> None:
    total, words = embedded(b, "word_embedding", "position_embedding", b["segment_embedding"])
    normal = b("LayerNormalization", total, "gamma", "beta", axis=-1, epsilon=b.attr("epsilon", 1e-12))
    b.returns(normal, words, total)


_GROUP = "activation:i channels_last:i epsilon:f groups:i"


def _group_normalised(b: Body, x: str, rank: int) -> str:
    """GroupNorm of ``x``, which is in NCHW order."""
    groups = int(b.call.required("groups"))
    normal = b("GroupNormalization", x, "gamma", "beta", num_groups=groups, epsilon=b.attr("epsilon", 1e-5))
    if b.attr("activation", 0):
        normal = b("Mul", normal, b("Sigmoid", normal))
    return channels_last(b, normal, rank) if b.attr("channels_last", 1) else normal


@composed("GroupNorm", "X:F gamma:F beta:F -> Y:F", _GROUP)
def _group_norm(b: Body) -> None:
    rank = len(b.shape("X"))
    b.returns(_group_normalised(b, channels_first(b, "X", rank) if b.attr("channels_last", 1) else "X", rank))


@composed("SkipGroupNorm", "X:F gamma:F beta:F skip:F bias:F? -> Y:F S:F?", _GROUP)
def _skip_group_norm(b: Body) -> None:
    rank, last = len(b.shape("X")), bool(b.attr("channels_last", 1))
    skip, bias = "skip", b["bias"]
    b.refuse("a two-dimensional skip in NCHW order", len(b.shape("skip")) == 2 and not last)
    if len(b.shape("skip")) == 2:
        skip = b("Unsqueeze", skip, b.ints(1, 2))
    if bias and not last:
        bias = b.reshape(bias, -1, *([1] * (rank - 2)))
    total = b.plus(b("Add", "X", skip), bias)
    b.returns(_group_normalised(b, channels_first(b, total, rank) if last else total, rank), total)
