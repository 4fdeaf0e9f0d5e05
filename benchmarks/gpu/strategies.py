"""The strategies of examples/strategies as cases: each against PyTorch and against taskmap's own templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu import cases
from benchmarks.gpu.cases import Case, Tensors
from examples.strategies.async_ring import async_ring
from examples.strategies.double_buffering import double_buffering
from examples.strategies.hopper import hopper
from examples.strategies.maxwell import maxwell
from examples.strategies.mma_large import mma_large
from examples.strategies.mma_small import mma_small
from examples.strategies.persistent_hopper import persistent_hopper
from examples.strategies.simple_wmma import simple_wmma
from examples.strategies.softmax_rows import softmax_rows
from examples.strategies.wmma_sample import wmma_sample
from taskmap.decompose import dim

SIZE, SMALL, ROWS, COLUMNS = 4096, (128, 128, 4096), 1 << 17, 128
HALVES = (persistent_hopper, hopper, async_ring, mma_large, mma_small, wmma_sample, simple_wmma)
FLOATS = (maxwell, double_buffering)
ON_SMALL = (mma_small, mma_large)
"""Small tiles win on small products (Fireiron, PACT 2020)."""


def strategies() -> Iterator[Case]:
    """Each strategy at a size that fills a GPU, the two of tensor cores at a small one, and rows."""
    for strategy in HALVES:
        yield _product(strategy, (SIZE, SIZE, SIZE), torch.float16)
    for strategy in ON_SMALL:
        yield _product(strategy, SMALL, torch.float16)
    for strategy in FLOATS:
        yield _product(strategy, (SIZE // 2, SIZE // 2, SIZE // 2), torch.float32)
    yield Case(
        f"softmax_rows f32 {ROWS}x{COLUMNS}", _softmax, lambda: (cases.randn(ROWS, COLUMNS, dtype=torch.float32),), 0.0,
        bytes=2.0 * 4 * ROWS * COLUMNS, tolerance=1e-5, strategy=softmax_rows(dim("m"), COLUMNS),
    )  # fmt: skip


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _product(strategy: Callable[..., Any], shape: tuple[int, int, int], dtype: torch.dtype) -> Case:
    m, n, k = shape

    def make() -> Tensors:
        return cases.randn(m, k, dtype=dtype), cases.randn(k, n, dtype=dtype)

    size = torch.empty(0, dtype=dtype).element_size()
    kind, tolerance = ("f32", 1e-5) if dtype == torch.float32 else ("f16", 5e-3)
    shown = f"{m}" if m == n == k else f"{m}x{n}x{k}"
    moved = float(size * (m * k + k * n + m * n))
    name = f"{strategy.__name__} {kind} {shown}"
    return Case(name, torch.matmul, make, 0.0, 2.0 * m * n * k, moved, tolerance=tolerance, strategy=strategy)
