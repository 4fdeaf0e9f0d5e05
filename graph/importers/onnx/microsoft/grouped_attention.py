"""RotaryEmbedding and GroupQueryAttention: heads that share keys, rotary positions, and a key-value cache."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.microsoft.attention import added_mask, heads, joined
from taskmap.graph.importers.onnx.read.composition import Body
from taskmap.ir.construct import static_size

INT64 = int(TensorProto.INT64)


def _counted(b: Body, length: str) -> str:
    """0, 1, ... up to but excluding the number in the vector ``length``."""
    return b("Range", b.constant(np.int64(0)), b("Squeeze", length, b.ints(0)), b.constant(np.int64(1)))


@composed(
    "RotaryEmbedding",
    "input:F position_ids:i64 cos_cache:F sin_cache:F -> output:F",
    "interleaved:i is_packed_batching:i num_heads:i rotary_embedding_dim:i scale:f",
)
def _rotary(b: Body) -> None:
    b.refuse("packed batches", b.attr("is_packed_batching", 0))
    b.refuse("a scale", b.attr("scale", 1.0) != 1.0)
    rank = len(b.shape("input"))
    turned = int(b.attr("rotary_embedding_dim", 0))
    places = "position_ids"
    if len(b.shape("position_ids")) == 1:  # the position of the first element; the others follow it
        length = b.sizes("input", rank - 2, rank - 1) if rank == 4 else b.sizes("input", 1, 2)
        row = b("Unsqueeze", b("Add", _counted(b, length), "position_ids"), b.ints(0))
        places = b("Expand", row, b("Concat", b.sizes("input", 0, 1), length, axis=0))
    settings = {"interleaved": int(b.attr("interleaved", 0)), "rotary_embedding_dim": turned}
    if rank == 4:
        b.returns(b("RotaryEmbedding", "input", "cos_cache", "sin_cache", places, **settings))
        return
    width, count = b.size("input", 2), int(b.attr("num_heads", 0))
    count = count or width // (turned or 2 * b.size("cos_cache", 1))
    if count < 1 or width % count:
        raise b.call.error(f"{count} heads for {width} elements in total")
    apart = heads(b, "input", count, width // count)
    b.returns(joined(b, b("RotaryEmbedding", apart, "cos_cache", "sin_cache", places, **settings), width))


_CACHE = "k_quant_type:s v_quant_type:s kv_cache_bit_width:i sliding_window_cache:i"
_NORMS = "k_norm_epsilon:f q_norm_epsilon:f qk_norm_epsilon:f"


@composed(
    "GroupQueryAttention",
    "query:F key:F? value:F? past_key:F? past_value:F? seqlens_k:i32 total_sequence_length:i32 cos_cache:F? "
    "sin_cache:F? position_ids:i64? attention_bias:F? head_sink:F? k_scale:F1? v_scale:F1? q_norm_weight:F? "
    "k_norm_weight:F? query_seqlens:i32? -> output:F present_key:F? present_value:F? output_qk:F?",
    f"causal:i do_rotary:i kv_num_heads:i local_window_size:i num_heads:i qk_output:i rotary_interleaved:i scale:f "
    f"smooth_softmax:i softcap:f {_CACHE} {_NORMS}",
)
def _group_query(b: Body) -> None:
    b.refuse("a quantised cache", b["k_scale"] or b["v_scale"] or b.attr("k_quant_type", "NONE") != "NONE")
    b.refuse("a cache of the window's size", b.attr("sliding_window_cache", 0))
    b.refuse("padded chunks of queries", b["query_seqlens"])
    b.refuse("the scores as a result", b.attr("qk_output", 0))
    count, shared = int(b.call.required("num_heads")), int(b.call.required("kv_num_heads"))
    if shared < 1 or count < 1 or count % shared:
        raise b.call.error(f"{count} query heads, which {shared} key heads do not divide")
    q, k, v = "query", b["key"], b["value"]
    size = b.size("query", 2) // (count if k else count + 2 * shared)
    if not k:
        q, k, v = b.split("query", 2, [count * size, shared * size, shared * size])
    q, k = _normed(b, q, "q", count, size), _normed(b, k, "k", shared, size)
    queries = b.sizes(q, 1, 2)
    total = b("Add", b.cast("seqlens_k", INT64), b.constant(np.int64(1)))  # [batch]: the number of keys in total
    first = _first(b, total, queries)
    places = b("Add", b("Unsqueeze", first, b.ints(1)), _counted(b, queries))  # [batch, queries]
    q, k, v = (heads(b, x, n, size) for x, n in ((q, count), (k, shared), (v, shared)))
    if b.attr("do_rotary", 0):
        at, kind = b["position_ids"] or places, int(b.attr("rotary_interleaved", 0))
        q, k = (b("RotaryEmbedding", x, "cos_cache", "sin_cache", at, interleaved=kind) for x in (q, k))
    keys, values = (_cached(b, name, new, first) for name, new in (("past_key", k), ("past_value", v)))
    mask = _mask(b, places, total, keys)
    b.returns(_attended(b, q, keys, values, mask, count, size), keys, values, "")


def _normed(b: Body, x: str, which: str, count: int, size: int) -> str:
    weight = b[f"{which}_norm_weight"]
    if not weight:
        return x
    epsilon = b.attr(f"{which}_norm_epsilon", b.attr("qk_norm_epsilon", 1e-6))
    normal = b("RMSNormalization", b.reshape(x, 0, 0, count, size), weight, axis=-1, epsilon=epsilon)
    return b.reshape(normal, 0, 0, count * size)


def _has_past(b: Body) -> bool:
    return bool(b["past_key"]) and static_size(b.shape("past_key")[2]) != 0


def _first(b: Body, total: str, queries: str) -> str:
    """The position of the first query of each row, [batch]: after the cache, or 0 without a cache."""
    if not _has_past(b):
        return b("Sub", total, total)
    return b("Max", b("Sub", total, queries), b.constant(np.int64(0)))


def _cached(b: Body, past: str, new: str, first: str) -> str:
    """The cache with the new keys or values at their positions, padded to the sequence's length."""
    if not _has_past(b):
        return new
    wanted = b.reshape(b.cast("total_sequence_length", INT64), 1)
    room = b("Max", b("Sub", wanted, b.sizes(past, 2, 3)), b.ints(0))
    wide = b("Pad", past, b("Concat", b.ints(0), room, axis=0), "", b.ints(2))
    return b("TensorScatter", wide, new, first, axis=2)


def _mask(b: Body, places: str, total: str, keys: str) -> str:
    """The addend to the scores, [batch, heads or 1, queries, keys]."""
    elem = b.elem("query")
    here = b("Unsqueeze", places, b.ints(1, 3))
    key = _counted(b, b.sizes(keys, 2, 3))
    allowed = b("Less", key, b.reshape(total, -1, 1, 1, 1))
    if b.attr("causal", 1):
        allowed = b("LessOrEqual", key, here)
    window = int(b.attr("local_window_size", -1))
    if window > 0:
        allowed = b("And", allowed, b("Greater", key, b("Sub", here, b.constant(np.int64(window)))))
    mask = added_mask(b, allowed, -math.inf, elem)
    if not b["attention_bias"]:
        return mask
    short = b.slice("attention_bias", 3, 0, b.sizes(keys, 2, 3))
    return b("Add", mask, short)


def _attended(b: Body, q: str, keys: str, values: str, mask: str, count: int, size: int) -> str:
    """Attention; a sink is one additional key, with the sink as its score and 0 as its value."""
    settings: dict[str, float] = {}
    if b.attr("scale", 0.0):
        settings["scale"] = float(b.attr("scale", 0.0))
    cap = float(b.attr("softcap", 0.0))
    if b["head_sink"] or b.attr("smooth_softmax", 0) > 0:
        b.refuse("a soft cap and a sink", cap > 0.0)
        sink = b.reshape("head_sink", 1, -1, 1, 1) if b["head_sink"] else b.number(0.0, "query")
        column = b("Concat", b.sizes(mask, 0, 1), b.ints(count), b.sizes(mask, 2, 3), b.ints(1), axis=0)
        grid = b("Concat", b.sizes(mask, 0, 1), b.ints(count), b.sizes(mask, 2, 4), axis=0)
        mask = b("Concat", b("Expand", mask, grid), b("Expand", sink, column), axis=3)
        keys, values = (_with_zero(b, x) for x in (keys, values))
    if cap > 0.0:
        settings["softcap"] = cap
    return joined(b, b("Attention", q, keys, values, mask, **settings), count * size)


def _with_zero(b: Body, x: str) -> str:
    return b("Pad", x, b.ints(0, 1), "", b.ints(2))
