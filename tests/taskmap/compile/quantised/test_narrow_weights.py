"""Products with weights of eight and of four bits, as modules of weight-only quantisation write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.taskmap.compare import compiled


class Bytes(nn.Module):
    """A linear layer with weights of i8 and a scale for each column, which scales the result."""

    def __init__(self, n: int, k: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-128, 128, (n, k), dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(n) * 0.01 + 0.001).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        q, scale = self.get_buffer("q"), self.get_buffer("scale")
        return torch.mm(x, q.t().to(x.dtype)) * scale

    def weight(self, dtype: torch.dtype) -> Tensor:
        return self.get_buffer("q").double() * self.get_buffer("scale").double()[:, None]


class Nibbles(nn.Module):
    """A linear layer with weights of four bits, two in a byte, in groups of 32 with a scale and a zero point."""

    def __init__(self, n: int, k: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(0, 256, (n, k // 2), dtype=torch.uint8))
        self.register_buffer("scale", (torch.rand(n, k // 32, 1) * 0.01 + 0.001).to(dtype))
        self.register_buffer("zero", torch.randint(0, 16, (n, k // 32, 1)).to(dtype))

    def widened(self, dtype: torch.dtype) -> Tensor:
        q, scale, zero = (self.get_buffer(name) for name in ("q", "scale", "zero"))
        parts = torch.stack([q & 15, q >> 4], -1).reshape(*scale.shape[:2], 32)
        return ((parts.to(dtype) - zero.to(dtype)) * scale.to(dtype)).reshape(q.shape[0], -1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.widened(x.dtype))

    def weight(self, dtype: torch.dtype) -> Tensor:
        return self.widened(dtype).double()


PLACES = {torch.float32: 0.0, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""The error of two roundings to a type."""


@pytest.mark.parametrize("dtype", PLACES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("kind", [Bytes, Nibbles])
@pytest.mark.parametrize(("n", "k"), [(96, 128), (150, 1088)])
def test_values(n: int, k: int, kind: type[Bytes | Nibbles], rows: int, dtype: torch.dtype) -> None:
    layer, x = kind(n, k, dtype).eval(), torch.randn(rows, k).to(dtype)
    with torch.no_grad():
        got = compiled(layer)(x)
    weight = layer.weight(torch.float64 if rows <= 8 else dtype)  # those of more rows are computed once, and rounded
    want = x.double() @ weight.T
    size = x.double().abs() @ weight.abs().T
    assert got.dtype == dtype
    assert ((got.double() - want).abs() <= 2.0**-21 * size + PLACES[dtype] * want.abs() + 1e-7).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [Bytes, Nibbles])
def test_weights_are_converted_once(kind: type[Bytes | Nibbles], dtype: torch.dtype, tmp_path: Path) -> None:
    layer = kind(96, 128, dtype).eval()
    with torch.no_grad():
        compiled(layer, options={"dump_dir": str(tmp_path)})(torch.randn(1, 128).to(dtype))
    (text,) = (path.read_text() for path in tmp_path.rglob("*_mm_*.c"))
    if "tm_code_" in text:  # pairs of bf16, looked up
        step = text[text.rindex("for (", 0, text.index("tm_code_i16x")) : text.rindex("tm_code_i16x")]
        assert "tm_vdpbf16ps_" in step
        assert "tm_cast_" not in step
        return
    step = text[text.rindex("for (", 0, text.index("tm_fma_")) : text.rindex("tm_fma_")]
    assert "tm_load_" in step
    assert not re.search(r"to_b?f16|to_bf16|2bf16", step)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_shifts_are_eagers(dtype: torch.dtype) -> None:
    x = torch.randint(-(1 << 7) if dtype != torch.uint8 else 0, 1 << 7, (70,)).to(dtype)

    def moved(x: Tensor) -> list[Tensor]:
        return [x >> 3, x << 2, x >> 0, torch.bitwise_right_shift(x, 7), torch.bitwise_left_shift(x, 1)]

    for got, want in zip(compiled(moved)(x), moved(x), strict=True):
        assert torch.equal(got, want)
