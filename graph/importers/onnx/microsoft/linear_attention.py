"""Linear attention: a state of keys and values, updated token by token; causal convolutions and rotation beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import MICROSOFT, composed, contract
from taskmap.graph.importers.onnx.microsoft.attention import heads, joined
from taskmap.graph.importers.onnx.microsoft.gates import silu
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.composition import Body
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.ir.construct import static_size
from taskmap.ir.errors import UnsupportedError

Array = NDArray[Any]
FLOAT = int(TensorProto.FLOAT)
RULES = ("linear", "gated", "delta", "gated_delta")

contract(
    MICROSOFT,
    "LinearAttention",
    "query:F key:F value:F past_state:F1? decay:F? beta:F? -> output:F present_state:F1",
    "chunk_size:i kv_num_heads:i q_num_heads:i scale:f state_window:i update_rule:s",
)


@lowering("LinearAttention", domain=MICROSOFT)
def _linear_attention(call: OnnxCall) -> Any:
    queries, count = int(call.required("q_num_heads")), int(call.required("kv_num_heads"))
    rule, window = str(call.attr("update_rule", "gated_delta")), int(call.attr("state_window", 0))
    if rule not in RULES or window:
        raise UnsupportedError(f"LinearAttention with the rule {rule} and a window of {window} states")
    most = max(queries, count)
    if queries < 1 or count < 1 or most % queries or most % count:
        raise call.error(f"{queries} heads of queries for {count} of keys")
    q, v = call.tensor(0), call.tensor(2)
    depth, width = (static_size(t.shape[2]) for t in (q, v))
    if depth is None or width is None or depth % queries or width % count:
        raise call.error(f"{depth} and {width} elements for {queries} and {count} heads")
    depth, width = depth // queries, width // count
    scale = float(call.attr("scale", 0.0)) or depth**-0.5
    if ("gated" in rule and not call.has(4)) or ("delta" in rule and not call.has(5)):
        raise call.error(f"the rule {rule} without its gates")

    def run(q: Array, k: Array, v: Array, past: Array | None, decay: Array | None, beta: Array | None) -> Any:
        batch, length = q.shape[:2]
        keys = k.reshape(batch, length, -1, depth).astype(np.float32)
        values = v.reshape(batch, length, count, width).astype(np.float32)
        keys = np.repeat(keys, count // keys.shape[2], 2)
        asked = q.reshape(batch, length, queries, depth).astype(np.float32) * np.float32(scale)
        state = np.zeros((batch, count, depth, width), np.float32) if past is None else past.astype(np.float32)
        kept = None
        if "gated" in rule and decay is not None:
            kept = np.exp(decay.astype(np.float32)).reshape(batch, length, count, -1, 1)
        rate = None
        if "delta" in rule and beta is not None:
            rate = beta.astype(np.float32).reshape(batch, length, -1, 1)
        made = np.empty((batch, length, most, width), np.float32)
        for t in range(length):
            if kept is not None:
                state = state * kept[:, t]
            new = values[:, t]
            if rate is not None:
                new = rate[:, t] * (new - np.einsum("bhkv,bhk->bhv", state, keys[:, t]))
            state = state + keys[:, t, :, :, None] * new[:, :, None, :]
            seen = np.repeat(state, most // count, 1)
            made[:, t] = np.einsum("bhkv,bhk->bhv", seen, np.repeat(asked[:, t], most // queries, 1))
        return [made.reshape(batch, length, -1).astype(q.dtype), state.astype(q.dtype if past is None else past.dtype)]

    state = call.elem(3) if call.has(3) else q.elem
    shapes = [(q.elem, (q.shape[0], q.shape[1], most * width)), (state, (q.shape[0], count, depth, width))]
    return on_host(call, run, shapes, "a state updated token by token", inputs=range(6))


@composed(
    "CausalConvWithState",
    "input:F weight:F bias:F? past_state:F? -> output:F present_state:F state_update:F?",
    "activation:s channels_last:i dilation:i input_channel_offset:i input_channels:i ndim:i state_channels_last:i "
    "state_length:i state_update_capacity:i state_window:i",
)
def _causal_convolution(b: Body) -> None:
    b.refuse("several dimensions", b.attr("ndim", 1) != 1)
    for name, plain in (("state_window", 0), ("state_length", 0), ("input_channels", 0), ("state_update_capacity", 0)):
        b.refuse(name, b.attr(name, plain) != plain)
    last = bool(b.attr("channels_last", 0))
    b.refuse("several axes of channels", len(b.shape("input")) != 3)
    kind = b.attr("activation", "none")
    b.refuse(f"the activation {kind}", kind not in ("none", "silu", "swish"))
    apart, channels = int(b.attr("dilation", 1)), b.size("weight", 0)
    reach = (b.size("weight", 2) - 1) * apart

    def turned(x: str) -> str:
        return b("Transpose", x, perm=[0, 2, 1]) if last else x

    x = turned("input")
    if b["past_state"]:
        before = turned("past_state")
    else:
        shape = b("Concat", b.sizes("input", 0, 1), b.ints(channels, reach), axis=0)
        before = b("Expand", b.number(0.0, "input"), shape)
    whole = b("Concat", before, x, axis=2) if reach else x
    made = b("Conv", whole, "weight", b["bias"], group=channels, dilations=[apart], kernel_shape=[b.size("weight", 2)])
    made = made if kind == "none" else silu(b, made)
    state = b.slice(whole, 2, -reach, np.iinfo(np.int64).max) if reach else before
    b.returns(turned(made), turned(state), "")


@composed(
    "MRotaryEmbedding",
    "input:F position_ids:i64 cos_cache:F sin_cache:F -> output:F",
    "interleaved:i is_packed_batching:i mrope_layout:i mrope_section:is num_heads:i rotary_embedding_dim:i scale:f",
)
def _rotary_of_three(b: Body) -> None:
    """Rotation by positions in time, height and width, each of which turns its own sections of a head."""
    b.refuse("packed batches", b.attr("is_packed_batching", 0))
    b.refuse("a scale", b.attr("scale", 1.0) != 1.0)
    sections = [int(n) for n in b.call.required("mrope_section")]
    half = b.size("cos_cache", 1)
    if len(sections) != 3 or sum(sections) != half or min(sections) < 0:
        raise b.call.error(f"sections {sections} of {half} angles")
    axis = np.repeat(np.arange(3), sections)
    if b.attr("mrope_layout", 0):
        axis = np.zeros(half, np.int64)
        for k in (1, 2):
            axis[k : 3 * sections[k] : 3] = k
    caches = []
    for name in ("cos_cache", "sin_cache"):
        every = b("Gather", name, "position_ids")  # [3, batch, length, half]
        made = b("Gather", every, b.constant(np.int64(0)), axis=0)
        for k in (1, 2):
            part = b("Gather", every, b.constant(np.int64(k)), axis=0)
            made = b("Where", b.constant(axis == k, int(TensorProto.BOOL)), part, made)
        caches.append(made)
    settings = {
        "interleaved": int(b.attr("interleaved", 0)),
        "rotary_embedding_dim": int(b.attr("rotary_embedding_dim", 0)),
    }
    if len(b.shape("input")) == 4:
        b.returns(b("RotaryEmbedding", "input", *caches, **settings))
        return
    width, count = b.size("input", 2), int(b.attr("num_heads", 0)) or b.size("input", 2) // (2 * half)
    if count < 1 or width % count:
        raise b.call.error(f"{count} heads for {width} elements in total")
    turned = b("RotaryEmbedding", heads(b, "input", count, width // count), *caches, **settings)
    b.returns(joined(b, turned, width))
