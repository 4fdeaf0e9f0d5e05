"""Floats of eight bits: conversions have eager's bits for every number, in models too, on every target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from taskmap.graph.importers.torch import types
from taskmap.ir.interp.definitions import convert
from taskmap.ir.types import DType, e4m3, e5m2
from taskmap.util.metrics import metrics
from tests.taskmap.compare import compiled, since

KINDS = {torch.float8_e4m3fn: e4m3, torch.float8_e5m2: e5m2}
TARGETS = ("cpu", "cuda-sim")


def numbers() -> Tensor:
    """Numbers of all sizes, halfway between two of eight bits, and their neighbours; infinities, NaN, zeros."""
    bits = torch.arange(0, 256, dtype=torch.uint8)
    exact = torch.cat([bits.view(kind).float() for kind in KINDS])
    exact = exact[exact.isfinite()].sort()[0]
    halfway = (exact[1:] + exact[:-1]) / 2
    near = torch.cat([exact, halfway, torch.tensor([448.0, 464.0, 57344.0, 61440.0, 65536.0, 1e30])])
    around = [near, near.nextafter(torch.tensor(torch.inf)), near.nextafter(torch.tensor(-torch.inf))]
    wide = torch.randn(999) * 2.0 ** torch.randint(-20, 20, (999,))
    special = torch.tensor([torch.inf, torch.nan, 0.0, 1e-45])
    return torch.cat([*around, wide, special, -special])


def bits_of(x: Tensor) -> Tensor:
    return x.view(torch.uint8)


def assert_bits(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    nan = want.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    assert torch.equal(bits_of(got)[~nan], bits_of(want)[~nan])


AS_EAGER = pytest.mark.skipif(not types._SATURATES, reason="this PyTorch makes NaN of numbers too large for e4m3")


@AS_EAGER
@pytest.mark.parametrize("target", TARGETS)
def test_conversions_have_the_bits_of_eager(target: str) -> None:
    x = numbers()

    def change(x: Tensor) -> tuple[Tensor, ...]:
        small = [x.to(kind) for kind in KINDS]
        return (*small, *(s.float() for s in small), *(s.half() for s in small), small[0].to(torch.float8_e5m2))

    before = metrics()
    got, want = compiled(change, options={"target": target})(x), change(x)
    assert since(before).externs == 0
    for a, b in zip(got, want, strict=True):
        if b.dtype in KINDS:
            assert_bits(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_by_way_of_other_types(target: str, dtype: torch.dtype) -> None:
    x = (torch.randn(200) * 50).to(dtype)
    function = compiled(lambda x: x.to(torch.float8_e4m3fn).to(dtype), options={"target": target})
    torch.testing.assert_close(function(x), x.to(torch.float8_e4m3fn).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_read(kind: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(kind).reshape(16, 16)
    for target in TARGETS:
        got = compiled(lambda x: (x.t().float(), x[3:5, 1:]), options={"target": target})(x)
        torch.testing.assert_close(got[0], x.t().float(), rtol=0, atol=0, equal_nan=True)
        assert_bits(got[1], x[3:5, 1:].contiguous())


class Quantised(nn.Module):
    """A linear layer on activations and weights that went through eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 40).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        small = (x * 8).to(torch.float8_e4m3fn)
        result: Tensor = torch.relu(small.float() @ self.weight.float().t() / 8).to(torch.bfloat16)
        return result


@AS_EAGER
@pytest.mark.parametrize("target", TARGETS)
def test_a_model_in_eight_bits(target: str) -> None:
    model, x = Quantised(), torch.randn(17, 40)
    before = metrics()
    with torch.no_grad():
        got = compiled(model, options={"target": target})(x)
    assert since(before).externs == 0
    torch.testing.assert_close(got, model(x), rtol=2e-2, atol=2e-2)


def test_what_is_computed_in_eight_bits_is_left_to_pytorch() -> None:
    x = torch.randn(20).to(torch.float8_e5m2)
    before = metrics()
    assert torch.equal(compiled(lambda x, y: x == y)(x, x.clone()), x == x)
    assert since(before).externs > 0


def test_a_pytorch_that_rounds_in_another_way_does_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "_SATURATES", False)
    x = numbers()
    before = metrics()
    assert_bits(compiled(lambda x: x.to(torch.float8_e4m3fn))(x), x.to(torch.float8_e4m3fn))
    assert since(before).externs > 0


@AS_EAGER
@pytest.mark.parametrize(("kind", "dtype"), KINDS.items())
def test_the_reference_rounds_alike(kind: torch.dtype, dtype: DType) -> None:
    x = numbers()
    np.testing.assert_array_equal(convert(x.numpy(), dtype), x.to(kind).float().numpy())
