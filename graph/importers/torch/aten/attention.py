"""aten's scaled dot-product attention on the CPU."""

from __future__ import annotations

from collections.abc import Collection

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import attention as ops
from taskmap.graph.ops.gradients import attention as gradients
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.types import f32, f64


@lowering("_scaled_dot_product_flash_attention_for_cpu.default", read=True)
def flash_attention(
    q: Node,
    k: Node,
    v: Node,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Node | None = None,
    scale: float | None = None,
    *,
    read: Collection[int] = (),
) -> tuple[Node, Node | None]:
    """The result, and the logarithm of each row's sum, which the gradient reads."""
    if dropout_p != 0.0:
        raise UnsupportedError("attention with dropout, which is random")
    mask = attn_mask
    if scale is not None and not isinstance(scale, (int, float)):
        raise UnsupportedError("attention with a symbolic scale")
    if 1 not in read:
        return ops.attention(q, k, v, mask, is_causal, scale), None
    if q.dtype in (f32, f64):  # scores of narrow floats would be kept, and multiplied, in f32
        return ops.attention_with_sums(q, k, v, mask, is_causal, scale)
    return ops.attention(q, k, v, mask, is_causal, scale), ops.log_sum_exp(q, k, mask, is_causal, scale)


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    output: Node,
    logsumexp: Node,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Node | None = None,
    scale: float | None = None,
) -> tuple[Node, Node, Node]:
    if dropout_p != 0.0:
        raise UnsupportedError("attention with dropout, which is random")
    return gradients.attention_backward(grad, q, k, v, output, logsumexp, is_causal, attn_mask, scale)
