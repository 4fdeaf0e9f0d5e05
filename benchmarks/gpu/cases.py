"""The cases measured on a GPU, kernel by kernel: the function, its inputs, its work, and its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Tensors = tuple[torch.Tensor, ...]
_SHORT = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
DEVICE = "cuda"


@dataclass(frozen=True, slots=True)
class Case:
    """``function`` of tensors that ``make`` draws; ``floor``: the required share of the baseline's speed.

    flops and bytes: the minimum that one call computes and moves. copy: the bound is of measured copy bandwidth
    instead.
    of_own: the bound is of the speed, for each operation, of taskmap at this case. baseline: what PyTorch is to run,
    where that is not ``function``. rivals: others that are measured beside it, by name. inductor: max-autotune of
    torch.compile is one of them. product: rows, columns, terms and the type of a matrix product, which the cost model
    has an estimate for. tolerance: of the relative error against float64, or against PyTorch for what is too large for
    that. strategy: the one that makes the kernel; taskmap's own template is then a rival.
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
    rivals: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    inductor: bool = False
    product: tuple[int, int, int, str] | None = None
    strategy: object = None

    @property
    def options(self) -> dict[str, Any] | None:
        """The options of torch.compile."""
        return None if self.strategy is None else {"strategies": [self.strategy]}


def randn(*shape: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> torch.Tensor:
    """Standard normal numbers times ``scale``, on the GPU."""
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def _linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, w)


def _linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, w, b))


def _matmul(name: str, m: int, n: int, k: int, floor: float, dtype: torch.dtype = torch.float16) -> Case:
    def make() -> Tensors:
        return randn(m, k, dtype=dtype), randn(n, k, dtype=dtype)

    size = torch.empty(0, dtype=dtype).element_size()
    tolerance = 1e-5 if dtype == torch.float32 else 5e-3
    moved, product = size * (m * k + n * k + m * n), (m, n, k, _SHORT[dtype])
    return Case(name, _linear, make, floor, 2.0 * m * n * k, moved, tolerance=tolerance, product=product)


def _dequantised(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, w.to(x.dtype)) * scale


def _int8(rows: int) -> Case:
    """Weights of int8, with a scale for each column of the result; beside it the product with weights of f16."""
    size = 4096

    def make() -> Tensors:
        weights = (randn(size, size, dtype=torch.float32) * 40).clamp(-127, 127).to(torch.int8)
        return randn(rows, size), weights, randn(size, scale=0.01)

    kept: dict[int, torch.Tensor] = {}

    def wide(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if w.data_ptr() not in kept:  # made once: that is not what is measured
            kept[w.data_ptr()] = w.to(torch.float16)
        return functional.linear(x, kept[w.data_ptr()])

    moved = float(size * size + 2 * size + 4 * rows * size)
    return Case(
        f"int8 weights {rows}x{size}x{size}", _dequantised, make, 1.0, 2.0 * rows * size * size, moved,
        rivals={"f16 weights": wide}, inductor=rows == 16,
    )  # fmt: skip


def matmul() -> Iterator[Case]:
    """Matrix products, large ones first."""
    for size, floor in ((8192, 0.9), (4096, 0.9), (2048, 0.85), (1024, 0.85)):
        yield replace(_matmul(f"f16 {size}", size, size, size, floor), inductor=size == 4096)
    even = _matmul("f16 2048", 2048, 2048, 2048, 0.85)
    yield replace(_matmul("f16 2039", 2039, 2039, 2039, 0.8), of_own=even)  # at a prime there is no cliff
    yield _matmul("f16 8192x8192x1024", 8192, 8192, 1024, 0.85)
    for rows in (1, 2, 4, 8, 16, 64):
        yield _matmul(f"f16 {rows}x4096x4096", rows, 4096, 4096, 0.9)
    yield _matmul("f16 64x512x16384", 64, 512, 16384, 0.9)  # blocks share sums
    for rows in (1, 16):
        yield _int8(rows)
    # In eager mode: a product of cuBLAS with the bias in its epilogue, then an element-wise kernel.
    yield Case(
        "f16 4096 + bias + gelu",
        _linear_gelu,
        lambda: (randn(4096, 4096), randn(4096, 4096), randn(4096)),
        1.0,
        2.0 * 4096**3,
        2.0 * 3 * 4096**2,
        inductor=True,
    )
    yield _matmul("bf16 4096", 4096, 4096, 4096, 0.9, torch.bfloat16)
    yield _matmul("f32 2048", 2048, 2048, 2048, 0.8, torch.float32)


def _sdpa(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any) -> torch.Tensor:
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(q, k, v, **how)


def _attention(
    name: str, heads: int, width: int, queries: int, keys: int, floor: float, *, causal: bool = False, groups: int = 1,
    batch: int = 1, inductor: bool = False,
) -> Case:  # fmt: skip
    """``groups``: heads of queries for each head of keys. Against flash attention, whatever PyTorch would choose, and
    beside it that of cuDNN."""
    how: dict[str, Any] = {"is_causal": causal} | ({"enable_gqa": True} if groups > 1 else {})

    def make() -> Tensors:
        own = randn(batch, heads, queries, width)
        return own, *(randn(batch, heads // groups, keys, width) for _ in range(2))

    return Case(
        name,
        partial(functional.scaled_dot_product_attention, **how),
        make,
        floor,
        4.0 * batch * heads * queries * keys * width / (2 if causal else 1),
        4.0 * batch * width * (heads * queries + heads // groups * keys),
        baseline=partial(_sdpa, SDPBackend.FLASH_ATTENTION, **how),
        rivals={"cudnn": partial(_sdpa, SDPBackend.CUDNN_ATTENTION, **how)},
        inductor=inductor,
    )


def attention() -> Iterator[Case]:
    """Forward, 16 heads of 128 numbers; of 64; and 32 heads that share 8 of keys and values."""
    for tokens in (4096, 16384):
        for causal in (False, True):
            yield _attention(f"f16 {tokens}{' causal' if causal else ''}", 16, 128, tokens, tokens, 0.7, causal=causal)
    yield _attention("f16 4096 d64", 16, 64, 4096, 4096, 0.7)
    yield _attention("f16 512 d64", 16, 64, 512, 512, 0.7)
    yield _attention("f16 4096 GQA 32/8", 32, 128, 4096, 4096, 0.7, groups=4)
    yield _attention("f16 4096 GQA 32/8 causal", 32, 128, 4096, 4096, 0.7, groups=4, causal=True)


def decode() -> Iterator[Case]:
    """One query per head: bound by reading keys and values once."""
    yield _attention("f16 32 heads, 4096 keys", 32, 128, 1, 4096, 0.9)
    yield _attention("f16 GQA 32/8, 4096 keys", 32, 128, 1, 4096, 0.9, groups=4, inductor=True)
    yield _attention("f16 GQA 32/8, 4096 keys, batch 8", 32, 128, 1, 4096, 0.9, groups=4, batch=8)
    yield _attention("f16 GQA 32/8, 32768 keys", 32, 128, 1, 32768, 0.9, groups=4)
    yield _attention("f16 32 heads d64, 4096 keys", 32, 64, 1, 4096, 0.9)


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.silu(x * 1.5 + y).tanh() * x


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(x, dim=-1)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _rows(name: str, function: Callable[..., torch.Tensor], rows: int, columns: int, dtype: torch.dtype) -> Case:
    size = torch.empty(0, dtype=dtype).element_size()
    return Case(
        name, function, lambda: (randn(rows, columns, dtype=dtype),), 0.85, bytes=2.0 * size * rows * columns, copy=True
    )


def memory() -> Iterator[Case]:
    """Memory-bound cases, relative to copy bandwidth, which the case `copy` measures."""
    rows, columns = 16384, 4096
    for dtype, kind in ((torch.float16, "f16"), (torch.float32, "f32")):
        yield replace(_rows(f"softmax {kind}", _softmax, rows, columns, dtype), inductor=kind == "f16")
        yield _rows(f"layer norm {kind}", _norm, rows, columns, dtype)
        size = torch.empty(0, dtype=dtype).element_size()
        yield Case(
            f"element-wise chain {kind}",
            _chain,
            lambda dtype=dtype: (randn(rows, columns, dtype=dtype), randn(rows, columns, dtype=dtype)),  # type: ignore[misc]
            0.85,
            bytes=3.0 * size * rows * columns,
            copy=True,
        )
    yield from wide_rows()


def _whole(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dtype=torch.float32)


def wide_rows() -> Iterator[Case]:
    """A few rows as wide as a vocabulary, whose stride is odd; and one sum of everything."""
    for name, function in (("softmax", _softmax), ("layer norm", _norm)):
        moved = 2.0 * 2 * 8 * 50257
        yield Case(f"{name} f16 8x50257", function, lambda: (randn(8, 50257),), 1.0, bytes=moved)
    yield Case(
        "sum of 16384x4096 f16", _whole, lambda: (randn(16384, 4096).abs(),), 0.85, bytes=2.0 * 16384 * 4096, copy=True
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
                   2.0 * 32 * o * out * out * c * window * window,
                   2.0 * (32 * (c * size * size + o * out * out) + o * c * window * window))  # fmt: skip
