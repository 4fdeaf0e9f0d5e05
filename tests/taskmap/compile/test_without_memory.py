"""Fake, meta and functional tensors given to compiled functions: answered as PyTorch's own backends answer them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode


class Affine(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(5, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.linear(x)) + torch.tensor([1.0, 2, 3, 4, 5, 6])
        return y, y.sum(1)


def fakes(model: torch.nn.Module, compiled: Any, mode: FakeTensorMode) -> Any:
    state: dict[str, Any] = {name: mode.from_tensor(p) for name, p in model.named_parameters()}
    return torch.func.functional_call(compiled, state, mode.from_tensor(torch.ones(4, 5)))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("built", [False, True])
def test_fake_tensors_give_fake_tensors(built: bool, grad: bool) -> None:
    torch._dynamo.reset()
    model = Affine()
    compiled = torch.compile(model, backend="taskmap")
    with torch.set_grad_enabled(grad):
        if built:
            compiled(torch.ones(4, 5))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            y, total = fakes(model, compiled, mode)
        assert isinstance(y, FakeTensor)
        assert isinstance(total, FakeTensor)
        assert (y.shape, total.shape) == ((4, 6), (4,))
        outside = fakes(model, compiled, mode)
        assert all(isinstance(t, FakeTensor) for t in outside)
        torch.testing.assert_close(compiled(torch.ones(4, 5)), model(torch.ones(4, 5)))


def test_real_tensors_under_a_fake_mode() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.relu() * 2, backend="taskmap")
    x = torch.randn(4, 5)
    torch.testing.assert_close(compiled(x), x.relu() * 2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(compiled(x), FakeTensor)
    with FakeTensorMode(), pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
        compiled(x)
    torch.testing.assert_close(compiled(x), x.relu() * 2)


def test_meta_tensors_give_meta_tensors() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.relu() * 2, backend="taskmap")
    compiled(torch.randn(4, 5))
    result = compiled(torch.empty(4, 5, device="meta"))
    assert (result.device.type, result.shape) == ("meta", (4, 5))


@pytest.mark.parametrize("backend", ["aot_eager", "taskmap"])
def test_functional_tensors_are_refused_alike(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.relu() * 2, backend=backend)
    x = torch.randn(4, 5)
    compiled(x)
    with FunctionalTensorMode():
        wrapped = FunctionalTensor.to_functional(x)
        with pytest.raises(RuntimeError, match="FunctionalTensor on its own"):
            compiled(wrapped)
