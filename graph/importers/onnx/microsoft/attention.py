"""Attention and MultiHeadAttention, as the standard's Attention with a mask added to the scores."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from taskmap.graph.build import same_dim
from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.read.composition import Body
from taskmap.ir.construct import static_size

FLOAT, INT64 = int(TensorProto.FLOAT), int(TensorProto.INT64)


def heads(b: Body, x: str, count: int, size: int) -> str:
    """[batch, length, count * size] as [batch, count, length, size]."""
    return b("Transpose", b.reshape(x, 0, 0, count, size), perm=[0, 2, 1, 3])


def joined(b: Body, x: str, width: int) -> str:
    """[batch, heads, length, size] as [batch, length, ``width``], where ``width`` is heads * size."""
    return b.reshape(b("Transpose", x, perm=[0, 2, 1, 3]), 0, 0, width)


def added_mask(b: Body, allowed: str, value: float, elem: int) -> str:
    """0 where ``allowed`` holds, else ``value``."""
    return b("Where", allowed, b.constant(0.0, elem), b.constant(value, elem))


def padding(b: Body, name: str, k: str, past: str, elem: int) -> str:
    """The addend to the scores for the mask in the input ``name``, broadcastable to them; empty without a mask.

    ``k`` holds the keys [batch, heads, length, size], ``past`` those before them.
    """
    if not b[name]:
        return ""
    value = float(b.attr("mask_filter_value", -10000.0))
    rank = len(b.shape(name))
    if rank == 1:
        return added_mask(b, _within_lengths(b, name, k, past), value, elem)
    mask = name
    if rank == 4:
        total = _length(b, k, past)
        queries = b.sizes(k, 2, 3)
        mask = b.slice(b.slice(mask, 3, 0, total), 2, b("Sub", total, queries) if past else 0, total)
    mask = {2: lambda: b("Unsqueeze", mask, b.ints(1, 2)), 3: lambda: b("Unsqueeze", mask, b.ints(1))}.get(
        rank, lambda: mask
    )()
    if elem == b.elem(name) and b.elem(name) == FLOAT:
        return b("Mul", b("Sub", b.constant(1.0, elem), mask), b.constant(value, elem))
    return added_mask(b, b("Cast", mask, to=int(TensorProto.BOOL)), value, elem)


def _length(b: Body, k: str, past: str) -> str:
    """The number of keys, as a vector of one element."""
    length = b.sizes(k, 2, 3)
    return b("Add", length, b.sizes(past, 3 if past == "past" else 2, 4 if past == "past" else 3)) if past else length


def _within_lengths(b: Body, name: str, k: str, past: str) -> str:
    """The keys before their row's end and, if starts are given, not before its start: bool [batch, 1, 1, keys]."""
    first = "input" if "input" in b.inputs else "query"
    count, batch = b.shape(name)[0], b.shape(first)[0]
    both = not same_dim(count, batch)
    known = static_size(count), static_size(batch)
    b.refuse("a mask of this length", both and (None in known or known[0] != 2 * (known[1] or 0)))
    total = b("Squeeze", _length(b, k, past), b.ints(0))
    place = b("Range", b.constant(np.int64(0)), total, b.constant(np.int64(1)))
    ends, starts = b.cast(name, INT64), ""
    if both:
        ends, starts = b.split(ends, 0, [known[1] or 0] * 2)
    allowed = b("Less", place, b.reshape(ends, -1, 1, 1, 1))
    return b("And", allowed, b("GreaterOrEqual", place, b.reshape(starts, -1, 1, 1, 1))) if starts else allowed


def attend(b: Body, q: str, k: str, v: str, mask: str, past: tuple[str, str], width: int) -> list[str]:
    """Attention with the call's scale: the result [batch, length, width], and keys and values including the past."""
    settings: dict[str, float | int] = {}
    if b.attr("scale", 0.0):
        settings["scale"] = float(b.attr("scale", 0.0))
    causal = int(b.attr("unidirectional", 0))
    made = b.several(3, "Attention", q, k, v, mask, *past, is_causal=causal, **settings)
    return [joined(b, made[0], width), *made[1:]]


def projected(b: Body, qkv: str, width: int, shared: bool) -> None:
    """Completes Attention after the product with the weights, ``qkv`` [batch, length, ``width``]."""
    b.refuse("rotation", b.attr("do_rotary", 0))
    b.refuse("a past that shares its buffer", b.attr("past_present_share_buffer", 0) or b["past_sequence_length"])
    count = int(b.call.required("num_heads"))
    sizes = [int(n) for n in b.attr("qkv_hidden_sizes", [])] or [width // 3] * 3
    if len(sizes) != 3 or sum(sizes) != width or count < 1 or any(n % count or n < 1 for n in sizes):
        raise b.call.error(f"{count} heads, and hidden sizes {sizes} that should sum to {width}")
    q, k, v = (heads(b, p, count, n // count) for p, n in zip(b.split(qkv, 2, sizes), sizes, strict=True))
    past = ("", "")
    if b["past"]:
        both = b.split("past", 0, [1, 1])
        past = (b("Squeeze", both[0], b.ints(0)), b("Squeeze", both[1], b.ints(0)))
    elem = b.elem("bias") if shared else b.elem("input")
    mask = b.plus(padding(b, "mask_index", k, b["past"], elem), b["attention_bias"])
    made, keys, values = attend(b, q, k, v, mask, past, sizes[2])
    present = ""
    if b.call.wants(1):
        present = b("Concat", b("Unsqueeze", keys, b.ints(0)), b("Unsqueeze", values, b.ints(0)), axis=0)
    b.returns(made, present)


_SETTINGS = "mask_filter_value:f num_heads:i scale:f unidirectional:i"


@composed(
    "Attention",
    "input:F weights:F bias:F? mask_index:A? past:F? attention_bias:F? past_sequence_length:I? -> output:F present:F?",
    f"{_SETTINGS} do_rotary:i rotary_embedding_dim:i past_present_share_buffer:i qkv_hidden_sizes:is",
)
def _attention(b: Body) -> None:
    qkv = b.plus(b("MatMul", "input", "weights"), b["bias"])
    projected(b, qkv, b.size("weights", 1), False)


def _parts(b: Body, count: int) -> tuple[str, str, str, int]:
    """Queries, keys and values as [batch, heads, length, size], without the bias, and the size of one value."""

    def unpacked(x: str, parts: int) -> list[str]:
        pieces = b.split(x, 3, [1] * parts)
        return [b("Transpose", b("Squeeze", p, b.ints(3)), perm=[0, 2, 1, 3]) for p in pieces]

    def apart(name: str) -> str:
        return name if len(b.shape(name)) == 4 else heads(b, name, count, _head_size(b, name, count))

    if len(b.shape("query")) == 5:
        q, k, v = unpacked("query", 3)
        return q, k, v, b.size("query", 4)
    q = apart("query")
    if len(b.shape("key")) == 5:
        k, v = unpacked("key", 2)
        return q, k, v, b.size("key", 4)
    return q, apart("key"), apart("value"), _head_size(b, "value", count)


def _head_size(b: Body, name: str, count: int) -> int:
    width = b.size(name, -1)
    if len(b.shape(name)) == 4:
        return width
    if width % count:
        raise b.call.error(f"{count} heads for {width} elements in total")
    return width // count


def _with_bias(b: Body, count: int, q: str, k: str, v: str) -> tuple[str, str, str]:
    packed = len(b.shape("query")) == 5
    width = count * b.size("query", -1) if packed else b.size("query", -1)
    parts = b.split("bias", 0, [width, width, b.size("bias", 0) - 2 * width])
    biases = [b("Unsqueeze", b.reshape(p, count, -1), b.ints(1)) for p in parts]
    ready = not packed and len(b.shape("key")) == 4  # keys projected earlier already include their bias
    return b("Add", q, biases[0]), k if ready else b("Add", k, biases[1]), v if ready else b("Add", v, biases[2])


@composed(
    "MultiHeadAttention",
    "query:F key:F? value:F? bias:F? key_padding_mask:A? attention_bias:F? past_key:F? past_value:F? "
    "past_sequence_length:I? cache_indirection:I? -> output:F present_key:F? present_value:F? qk:F1?",
    _SETTINGS,
)
def _multi_head(b: Body) -> None:
    b.refuse("a past that shares its buffer", b["past_sequence_length"] or b["cache_indirection"])
    count = int(b.call.required("num_heads"))
    if count < 1:
        raise b.call.error(f"{count} heads")
    q, k, v, size = _parts(b, count)
    if b["bias"]:
        q, k, v = _with_bias(b, count, q, k, v)
    past = (b["past_key"], b["past_value"])
    mask = b.plus(padding(b, "key_padding_mask", k, past[0], b.elem("query")), b["attention_bias"])
    made, keys, values = attend(b, q, k, v, mask, past, count * size)
    b.returns(made, keys, values, "")
