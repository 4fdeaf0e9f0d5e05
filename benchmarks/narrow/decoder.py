"""One token through a decoder with a cache of keys and values, its weights stored in bf16, in bytes or in four bits.

The layers are those of `benchmarks.models.llama`, 896 wide with 14 query and 2 key heads by default. The values in the
cache are inputs, the token's own key and value are the last position.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.llama import RMSNorm, rotate

GROUP = 32
"""Terms of a sum that share a scale and a zero point of weights of four bits."""
NARROW = torch.bfloat16


class Bytes(nn.Module):
    """A linear layer with weights of i8 and a scale for each row, which scales the result: torchao's int8 weights."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-127, 128, (n, k), dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(n) * 0.5 + 0.5).div(127 * k**0.5).to(NARROW))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.get_buffer("q").to(x.dtype)) * self.get_buffer("scale")

    def exact(self) -> Tensor:
        """The weights in float64."""
        return self.get_buffer("q").double() * self.get_buffer("scale").double()[:, None]


class Nibbles(nn.Module):
    """A linear layer with weights of four bits, two in a byte, in groups with a scale and a zero point."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(0, 256, (n, k // 2), dtype=torch.uint8))
        self.register_buffer("scale", (torch.rand(n, k // GROUP, 1) * 0.5 + 0.5).div(4 * k**0.5).to(NARROW))
        self.register_buffer("zero", torch.randint(5, 11, (n, k // GROUP, 1)).to(NARROW))

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weights, computed in `dtype`."""
        q, scale, zero = (self.get_buffer(name) for name in ("q", "scale", "zero"))
        return ((self.numbers().to(dtype) - zero.to(dtype)) * scale.to(dtype)).reshape(q.shape[0], -1)

    def numbers(self) -> Tensor:
        """The numbers of four bits: [n, groups, terms of a group]."""
        q = self.get_buffer("q")
        return torch.stack([q & 15, q >> 4], -1).reshape(q.shape[0], -1, GROUP)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.widened(x.dtype))

    def exact(self) -> Tensor:
        """The weights in float64."""
        return self.widened(torch.float64)


class PackedNibbles(nn.Module):
    """The same layer by PyTorch's own product of such weights, which packs them as it needs them (torchao's way)."""

    def __init__(self, of: Nibbles) -> None:
        super().__init__()
        scale, zero = of.get_buffer("scale")[..., 0], of.get_buffer("zero")[..., 0]
        numbers = of.numbers().reshape(scale.shape[0], -1).int()
        self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1))
        pairs = torch.stack([scale, (8 - zero) * scale], -1).transpose(0, 1).contiguous()
        self.register_buffer("scales_and_zeros", pairs)

    def forward(self, x: Tensor) -> Tensor:
        rows, pairs = x.reshape(-1, x.shape[-1]), self.get_buffer("scales_and_zeros")
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.get_buffer("packed"), GROUP, pairs)
        return y.reshape(*x.shape[:-1], -1)


def plain(k: int, n: int) -> nn.Linear:
    """A linear layer with weights of bf16."""
    return nn.Linear(k, n, bias=False).to(NARROW)


KINDS: dict[str, Callable[[int, int], nn.Module]] = {"bf16": plain, "int8": Bytes, "int4": Nibbles}


class CachedLayer(nn.Module):
    """Grouped-query attention of one token over a cache, then SwiGLU: (1, 1, dim) to itself."""

    def __init__(self, make: Callable[[int, int], nn.Module], dim: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.attention_norm, self.mlp_norm = RMSNorm(dim), RMSNorm(dim)
        self.q, self.out = make(dim, dim), make(dim, dim)
        self.k, self.v = (make(dim, kv_heads * self.head_dim) for _ in range(2))
        self.gate, self.up, self.down = make(dim, hidden), make(dim, hidden), make(hidden, dim)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.attention_norm(x)
        q, k, v = (f(h).view(1, 1, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        keys = torch.cat((keys, rotate(k, cos, sin)), 2)
        values = torch.cat((values, v), 2)
        mixed = functional.scaled_dot_product_attention(rotate(q, cos, sin), keys, values, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        y: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return y


class DecoderStep(nn.Module):
    """`layers` layers: a token (1, 1, dim), keys and values (layers, 1, kv_heads, cache - 1, head_dim)."""

    def __init__(
        self, kind: str, layers: int = 12, dim: int = 896, heads: int = 14, kv_heads: int = 2, hidden: int = 4864
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CachedLayer(KINDS[kind], dim, heads, kv_heads, hidden) for _ in range(layers))
        self.to(NARROW)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x, keys[number], values[number], cos, sin)
        return x

    def inputs(self, cache: int) -> tuple[Tensor, ...]:
        """Random arguments, for a cache of `cache` positions with the token's own."""
        layer = self.layers[0]
        assert isinstance(layer, CachedLayer)
        x, dim = torch.randn(1, 1, layer.attention_norm.weight.shape[0]), layer.head_dim
        kv_heads = layer.k(x.to(NARROW)).shape[-1] // dim
        past = torch.randn(2, len(self.layers), 1, kv_heads, cache - 1, dim)
        angle = torch.arange(dim // 2).mul(-2 / dim).exp().mul(cache - 1).repeat(1, 2)
        return tuple(t.to(NARROW) for t in (x, *past, angle.cos(), angle.sin()))


def replaced(step: DecoderStep, make: Callable[[nn.Module], nn.Module]) -> DecoderStep:
    """`step` with each linear layer replaced, in place."""
    for layer in step.layers:
        for name in ("q", "k", "v", "out", "gate", "up", "down"):
            setattr(layer, name, make(getattr(layer, name)))
    return step


def exact_linear(layer: nn.Module) -> nn.Linear:
    """The layer in float64."""
    weight = layer.exact() if isinstance(layer, (Bytes, Nibbles)) else layer.get_parameter("weight").double()
    wide = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    wide.weight.data = weight
    return wide


def bytes_read(step: nn.Module, args: tuple[Tensor, ...]) -> int:
    """Bytes of all weights and inputs, each of which a step reads once."""
    return sum(t.numel() * t.element_size() for t in (*step.parameters(), *step.buffers(), *args))
