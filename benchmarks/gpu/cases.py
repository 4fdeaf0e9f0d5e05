"""What is measured on a GPU, kernel by kernel: the function, its inputs, its work, and the bound to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """``function`` of tensors that ``make`` draws; ``floor``: of the baseline's speed, what is wanted at least.

    flops and bytes: what one call computes and moves at least. copy: the bound is of measured copy bandwidth instead.
    of_own: the bound is of the speed, for each operation, of taskmap at this case. baseline: what PyTorch is to run,
    where that is not ``function``. tolerance: of the relative error against float64, or against PyTorch for what is too
    large for that.
    """

    name: str
    function: Callable[..., torch.Tensor]
    make: Callable[[], Tensors]
    floor: float
    flops: float = 0.0
    bytes: float = 0.0
    copy: bool = False
    tolerance: float = 5e-3
    of_own: Case | None = None
    baseline: Callable[..., torch.Tensor] | None = None


def randn(*shape: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> torch.Tensor:
    """Standard normal numbers times ``scale``, on the GPU."""
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def _linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, w)


def _linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, w, b))


def _matmul(name: str, m: int, n: int, k: int, floor: float, dtype: torch.dtype = torch.float16) -> Case:
    def make() -> Tensors:
        return randn(m, k, dtype=dtype), randn(n, k, dtype=dtype)

    size = torch.empty(0, dtype=dtype).element_size()
    tolerance = 1e-5 if dtype == torch.float32 else 5e-3
    return Case(name, _linear, make, floor, 2.0 * m * n * k, size * (m * k + n * k + m * n), tolerance=tolerance)


def matmul() -> Iterator[Case]:
    """Products, the large ones first."""
    for size, floor in ((8192, 0.9), (4096, 0.9), (2048, 0.85), (1024, 0.85)):
        yield _matmul(f"f16 {size}", size, size, size, floor)
    even = _matmul("f16 2048", 2048, 2048, 2048, 0.85)
    yield replace(_matmul("f16 2039", 2039, 2039, 2039, 0.8), of_own=even)  # at a prime there is no cliff
    for rows in (1, 16, 64):
        yield _matmul(f"f16 {rows}x4096x4096", rows, 4096, 4096, 0.9)
    # In eager mode: a product of cuBLAS with the bias in its epilogue, then an element-wise kernel.
    yield Case(
        "f16 4096 + bias + gelu",
        _linear_gelu,
        lambda: (randn(4096, 4096), randn(4096, 4096), randn(4096)),
        1.0,
        2.0 * 4096**3,
    )
    yield _matmul("bf16 4096", 4096, 4096, 4096, 0.9, torch.bfloat16)
    yield _matmul("f32 2048", 2048, 2048, 2048, 0.8, torch.float32)


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def attention() -> Iterator[Case]:
    """Forward, 128 numbers a head, 16 heads; against flash attention, whatever PyTorch would choose."""
    heads, width = 16, 128
    for tokens in (4096, 16384):
        for causal in (False, True):
            yield Case(
                f"f16 {tokens}{' causal' if causal else ''}",
                partial(functional.scaled_dot_product_attention, is_causal=causal),
                lambda tokens=tokens: tuple(randn(1, heads, tokens, width) for _ in range(3)),  # type: ignore[misc]
                0.7,
                4.0 * heads * tokens * tokens * width / (2 if causal else 1),
                baseline=partial(_flash, is_causal=causal),
            )


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.silu(x * 1.5 + y).tanh() * x


def _rows(name: str, function: Callable[..., torch.Tensor], rows: int, columns: int, dtype: torch.dtype) -> Case:
    size = torch.empty(0, dtype=dtype).element_size()
    return Case(
        name, function, lambda: (randn(rows, columns, dtype=dtype),), 0.85, bytes=2.0 * size * rows * columns, copy=True
    )


def memory() -> Iterator[Case]:
    """What memory bounds: of copy bandwidth, which is measured as the case `copy`."""
    rows, columns = 16384, 4096
    for dtype, kind in ((torch.float16, "f16"), (torch.float32, "f32")):
        yield _rows(f"softmax {kind}", partial(functional.softmax, dim=-1), rows, columns, dtype)
        yield _rows(f"layer norm {kind}", lambda x: functional.layer_norm(x, x.shape[-1:]), rows, columns, dtype)
        size = torch.empty(0, dtype=dtype).element_size()
        yield Case(
            f"element-wise chain {kind}",
            _chain,
            lambda dtype=dtype: (randn(rows, columns, dtype=dtype), randn(rows, columns, dtype=dtype)),  # type: ignore[misc]
            0.85,
            bytes=3.0 * size * rows * columns,
            copy=True,
        )


def resnet50_layers() -> Iterator[tuple[int, int, int, int, int]]:
    """The different convolutions of ResNet-50: channels in and out, window, stride, size of the image."""
    yield 3, 64, 7, 2, 224
    wide, size = 64, 56
    for stage, inner in enumerate((64, 128, 256, 512)):
        outer, stride = 4 * inner, 1 if stage == 0 else 2
        yield wide, inner, 1, 1, size
        yield inner, inner, 3, stride, size
        yield wide, outer, 1, stride, size  # the shortcut
        size //= stride
        if stride > 1:
            yield inner, inner, 3, 1, size
        if stage:
            yield inner, outer, 1, 1, size  # in the first stage it is as the shortcut
        yield outer, inner, 1, 1, size
        wide = outer


def convolution() -> Iterator[Case]:
    """Layers of ResNet-50, batch 32, channels-last; cuDNN chooses by measuring."""
    for c, o, window, stride, size in resnet50_layers():

        def make(c: int = c, o: int = o, window: int = window, size: int = size) -> Tensors:
            x = randn(32, c, size, size).to(memory_format=torch.channels_last)
            w = randn(o, c, window, window, scale=(c * window * window) ** -0.5)
            return x, w.to(memory_format=torch.channels_last)

        function: Any = partial(functional.conv2d, stride=stride, padding=window // 2)
        out = size // stride
        yield Case(f"f16 {c}->{o} {window}x{window}/{stride} {size}", function, make, 0.8,
                   2.0 * 32 * o * out * out * c * window * window)  # fmt: skip


SECTIONS: dict[str, Callable[[], Iterator[Case]]] = {
    "matmul": matmul,
    "attention": attention,
    "memory": memory,
    "convolution": convolution,
}
