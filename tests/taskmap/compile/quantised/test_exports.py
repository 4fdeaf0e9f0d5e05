"""Graphs of ``quantized_decomposed``, as PT2E makes them: values as eager's, products of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import Tensor, nn

from taskmap.backend.cpu.host import detect_host
from tests.taskmap.compare import compiled, tensors

OPS = torch.ops.quantized_decomposed
HOST = detect_host().features
settings = pytest.mark.parametrize("features", ["none", *(["avx512_vnni"] if "avx512_vnni" in HOST else [])])


def requantised(x: Tensor, scale: float, zero: int) -> Tensor:
    """``x`` rounded to bytes and back."""
    low, high = 0, 255
    q = OPS.quantize_per_tensor(x, scale, zero, low, high, torch.uint8)
    made: Tensor = OPS.dequantize_per_tensor(q, scale, zero, low, high, torch.uint8)
    return made


class Weights(nn.Module):
    """A weight of bytes, with a scale and a zero point for each of its filters."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-127, 128, shape, dtype=torch.int8))
        self.register_buffer("scale", torch.rand(shape[0]) * 0.01 + 0.001)
        self.register_buffer("zero", torch.zeros(shape[0], dtype=torch.int64))
        self.register_buffer("bias", torch.randn(shape[0]))

    def weight(self) -> Tensor:
        q, scale, zero = (self.get_buffer(n) for n in ("q", "scale", "zero"))
        made: Tensor = OPS.dequantize_per_channel(q, scale, zero, 0, -127, 127, torch.int8)
        return made


class Linear(Weights):
    """A static linear layer, then one that chooses its scale from its input."""

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(requantised(x, 0.03, 131), self.weight(), self.get_buffer("bias"))
        return requantised(y, 0.2, 120)


class Dynamic(Weights):
    def forward(self, x: Tensor) -> Tensor:
        scale, zero = OPS.choose_qparams(x, 0, 255, 1e-7, torch.uint8)
        q = OPS.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        x = OPS.dequantize_per_tensor(q, scale, zero, 0, 255, torch.uint8)
        return nn.functional.linear(x, self.weight(), self.get_buffer("bias"))


class Convolution(Weights):
    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.conv2d(requantised(x, 0.03, 131), self.weight(), self.get_buffer("bias"), 2, 1)
        return requantised(torch.relu(y), 0.2, 0)


def run(model: nn.Module, x: Tensor, features: str, folder: Path) -> tuple[Tensor, Tensor, bool]:
    """Our result, eager's, and whether a kernel multiplies bytes."""
    with torch.no_grad():
        got = compiled(model.eval(), options={"features": features, "dump_dir": str(folder)})(x)
        want: Tensor = model(x)
    texts = [path.read_text() for path in folder.rglob("*.c")]
    return got, want, any("vpdpbusd" in text for text in texts)


@settings
@pytest.mark.parametrize("rows", [1, 40])
def test_a_static_linear_layer(rows: int, features: str, tmp_path: Path) -> None:
    got, want, integers = run(Linear(80, 96), torch.randn(rows, 96), features, tmp_path)
    assert integers == (features != "none")
    steps = ((got - want) / 0.2).round()
    assert steps.abs().max() <= 1  # between two neighbours, sums of floats round either way
    assert (steps != 0).float().mean() < 0.01


@settings
def test_a_dynamic_linear_layer(features: str, tmp_path: Path) -> None:
    got, want, integers = run(Dynamic(80, 96), torch.randn(4, 10, 96), features, tmp_path)
    assert integers == (features != "none")
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@settings
def test_a_convolution(features: str, tmp_path: Path) -> None:
    got, want, integers = run(Convolution(24, 20, 3, 3), torch.randn(2, 20, 13, 11), features, tmp_path)
    assert integers == (features != "none")
    steps = ((got - want) / 0.2).round()
    assert steps.abs().max() <= 1
    assert (steps != 0).float().mean() < 0.01


@pytest.mark.parametrize("filters", [8, 20])
def test_a_small_convolution_runs_on_tile_registers(filters: int, tmp_path: Path) -> None:
    """Weights of a few channels or filters are too few to be worth packing as floats, but not as bytes."""
    model, x = Convolution(filters, 3, 3, 3), torch.randn(2, 3, 17, 15)
    with torch.no_grad():
        got = compiled(model.eval(), options={"isa": "amx-sim", "dump_dir": str(tmp_path)})(x)
        want = model(x)
    texts = [path.read_text() for path in tmp_path.rglob("*.c")]
    assert any("tdpb" in text and "tpacked" not in text for text in texts)
    assert ((got - want) / 0.2).round().abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_values_of_the_operators_are_eagers(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.cat([torch.randn(1000) * 3, torch.tensor([0.0, -0.0, 1e30, -1e30, 0.05, 0.15, 0.25])])

    scales, zeros = torch.rand(10) + 0.01, torch.arange(10)

    def quantised(x: Tensor) -> Any:
        chosen = OPS.choose_qparams(x.clamp(-5, 5), low, high, 1e-7, dtype)
        even = OPS.choose_qparams_symmetric(x.clamp(-5, 5), low, high, 1e-7, dtype)
        rows = x[:1000].reshape(10, 100)
        q = OPS.quantize_per_channel(rows, scales, zeros, 0, low, high, dtype)
        return (
            chosen, even, OPS.quantize_per_tensor(x, 0.1, low + 5, low, high, dtype),
            OPS.quantize_per_tensor(x, *chosen, low, high, dtype), q,
            OPS.dequantize_per_channel(q, scales, zeros, 0, low, high, dtype),
        )  # fmt: skip

    for a, b in zip(tensors(compiled(quantised)(x)), tensors(quantised(x)), strict=True):
        assert torch.equal(a, b), (a, b)


def test_a_scale_of_zero_is_refused_as_by_eager() -> None:
    x = torch.randn(8)

    def wrong(x: Tensor) -> Any:
        return OPS.quantize_per_tensor(x, 0.0, 0, -128, 127, torch.int8)

    with pytest.raises(ZeroDivisionError):
        wrong(x)
    with pytest.raises(Exception, match="division by zero"):
        compiled(wrong)(x)
