"""Products of quantised tensors: the integers are multiplied exactly and scaled once."""

from __future__ import annotations

from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.microsoft.attention import projected
from taskmap.graph.importers.onnx.microsoft.convolutions import WINDOW, channels_first, channels_last, window
from taskmap.graph.importers.onnx.microsoft.norms import embedded
from taskmap.graph.importers.onnx.microsoft.quantised import numbers, quantised
from taskmap.graph.importers.onnx.read.composition import Body
from taskmap.graph.quantised.products import LONGEST
from taskmap.ir.construct import static_size

FLOAT, INT32 = int(TensorProto.FLOAT), int(TensorProto.INT32)


def _scaled_product(b: Body, operands: tuple[str, str], scales: tuple[str, str], zeros: tuple[str, str]) -> str:
    """(a - a_zero) @ (b - b_zero), times both scales; the second scale may differ by column. Refuses sums that i32 may
    not hold."""
    terms = static_size(b.shape(operands[1])[-2])
    b.refuse(f"sums of {terms} products", terms is not None and terms > LONGEST)
    whole = b("MatMulInteger", *operands, *zeros)
    return b("Mul", b("Cast", whole, to=FLOAT), b("Mul", *scales))


@composed("MatMulIntegerToFloat", "A:Q B:Q1 a_scale:F b_scale:F a_zero_point:Q? b_zero_point:Q1? bias:F? -> Y:F")
def _to_float(b: Body) -> None:
    b.refuse("one scale per row", len(b.shape("a_scale")) and static_size(b.shape("a_scale")[0]) != 1)
    zeros = (b["a_zero_point"], b["b_zero_point"])
    made = b.plus(_scaled_product(b, ("A", "B"), ("a_scale", "b_scale"), zeros), b["bias"])
    b.returns(made)


@composed("DynamicQuantizeMatMul", "A:F B:Q b_scale:F b_zero_point:Q? bias:F? -> Y:F")
def _dynamic(b: Body) -> None:
    a, scale, zero = b.several(3, "DynamicQuantizeLinear", "A")
    made = b.plus(_scaled_product(b, (a, "B"), (scale, "b_scale"), (zero, b["b_zero_point"])), b["bias"])
    b.returns(made)


@composed(
    "QGemm",
    "A:Q a_scale:f32 a_zero_point:Q B:Q1 b_scale:f32 b_zero_point:Q1 C:i32? y_scale:f32? y_zero_point:Q2? -> Y:A",
    "alpha:f transA:i transB:i",
)
def _gemm(b: Body) -> None:
    x = b("Transpose", "A", perm=[1, 0]) if b.attr("transA", 0) else "A"
    w = b("Transpose", "B", perm=[1, 0]) if b.attr("transB", 0) else "B"
    whole = b.plus(b("MatMulInteger", x, w, "a_zero_point", "b_zero_point"), b["C"])
    scale = b("Mul", "a_scale", "b_scale")
    if b.attr("alpha", 1.0) != 1.0:
        scale = b("Mul", scale, b.number(b.attr("alpha", 1.0), "a_scale"))
    made = b("Mul", b("Cast", whole, to=FLOAT), scale)
    if b["y_scale"]:
        elem = b.elem("y_zero_point") if b["y_zero_point"] else int(TensorProto.UINT8)
        made = quantised(b, made, "y_scale", b["y_zero_point"], elem)
    b.returns(made)


@composed(
    "QLinearConv",
    "x:Q x_scale:f32 x_zero_point:Q w:Q1 w_scale:f32 w_zero_point:Q1 y_scale:f32 y_zero_point:Q2 B:i32? -> y:Q2",
    f"{WINDOW} channels_last:i",
)
def _conv(b: Body) -> None:
    rank, last = len(b.shape("x")), bool(b.attr("channels_last", 0))
    x = channels_first(b, "x", rank) if last else "x"
    rest = ("x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", b["B"])
    made = b("QLinearConv", x, *rest, **window(b))
    b.returns(channels_last(b, made, rank) if last else made)


@composed(
    "QAttention",
    "input:Q weight:Q1 bias:F input_scale:F weight_scale:F mask_index:i32? input_zero_point:Q? weight_zero_point:Q1? "
    "past:F? -> output:F present:F?",
    "do_rotary:i mask_filter_value:f num_heads:i past_present_share_buffer:i scale:f unidirectional:i",
)
def _attention(b: Body) -> None:
    zeros = (b["input_zero_point"], b["weight_zero_point"])
    qkv = b("Add", _scaled_product(b, ("input", "weight"), ("input_scale", "weight_scale"), zeros), "bias")
    projected(b, qkv, b.size("weight", 1), True)


@composed(
    "QEmbedLayerNormalization",
    "input_ids:I segment_ids:I? word_embedding_quant:Q position_embedding_quant:Q segment_embedding:Q? gamma_quant:Q "
    "beta_quant:Q mask:I? word_embedding_scale:F position_embedding_scale:F segment_embedding_scale:F? gamma_scale:F "
    "beta_scale:F word_embedding_zero_point:Q position_embedding_zero_point:Q segment_embedding_zero_point:Q? "
    "gamma_zero_point:Q beta_zero_point:Q -> layernorm_out:F mask_index_out:i32?",
    "epsilon:f",
)
def _embed(b: Body) -> None:
    names = ("word_embedding", "position_embedding", "gamma", "beta")
    word, position, gamma, beta = (numbers(b, f"{n}_quant", f"{n}_scale", f"{n}_zero_point") for n in names)
    segment = ""
    if b["segment_embedding"]:
        segment = numbers(b, "segment_embedding", "segment_embedding_scale", b["segment_embedding_zero_point"])
    total, words = embedded(b, word, position, segment)
    epsilon = b.attr("epsilon", 1e-12)
    b.returns(b("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon), words)


@composed(
    "DynamicQuantizeLSTM",
    "X:F W:Q R:Q B:F? sequence_lens:i32? initial_h:F? initial_c:F? P:F? W_scale:F W_zero_point:Q R_scale:F "
    "R_zero_point:Q -> Y:F? Y_h:F? Y_c:F?",
    "activation_alpha:fs activation_beta:fs activations:ss clip:f direction:s hidden_size:i input_forget:i",
)
def _lstm(b: Body) -> None:
    """The weights are stored transposed. They are dequantised first, so that states are not rounded to integers."""
    weights = []
    for name in ("W", "R"):
        scale, zero = f"{name}_scale", f"{name}_zero_point"
        whole = b("Sub", b.cast(name, INT32), _per_column(b, b.cast(zero, INT32), zero))
        value = b("Mul", b.cast(whole, FLOAT), _per_column(b, scale, scale))
        weights.append(b("Transpose", value, perm=[0, 2, 1]))
    rest = [b[n] for n in ("B", "sequence_lens", "initial_h", "initial_c", "P")]
    b.returns(*b.several(3, "LSTM", "X", *weights, *rest, **b.call.attributes))


def _per_column(b: Body, x: str, given: str) -> str:
    """[directions] or [directions, columns], reshaped to broadcast to [directions, rows, columns]."""
    return b("Unsqueeze", x, b.ints(1, 2) if len(b.shape(given)) == 1 else b.ints(1))
