"""Training: forward and backward through taskmap; results and gradients equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, compiled, since


class Block(nn.Module):
    """Attention and a feed-forward layer, with norms and residuals."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(c, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        result: Tensor = x + self.down(F.gelu(self.up(self.ln2(x))))
        return result


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, groups=8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def multilayer() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.SiLU(), nn.Linear(20, 3), nn.LogSoftmax(-1))


def train(model: nn.Module, run: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Losses of a few steps of gradient descent, and the model's state after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[Tensor] = []
    for x in inputs:
        optimizer.zero_grad()
        loss = run(x).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters()), *(b for b in model.buffers())]


@pytest.mark.parametrize(
    ("make", "shape"),
    [(multilayer, (5, 6)), (convolutional, (2, 3, 12, 12)), (Block, (2, 7, 16))],
    ids=["mlp", "conv", "attention"],
)
def test_training_follows_eager(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    mine = make().train()
    theirs = copy.deepcopy(mine)
    inputs = [torch.randn(shape) for _ in range(3)]
    before = metrics()
    got = train(mine, compiled(mine), inputs)
    count = since(before)
    assert count.graphs == 2, "a forward and a backward graph"
    assert count.fallbacks == 0
    assert count.calls == 2 * len(inputs)
    for a, b in zip(got, train(theirs, theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def gradients(run: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = run(*leaves)
    torch.autograd.backward(out, torch.linspace(-1, 1, out.numel()).reshape(out.shape))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * y).exp().sum(-1),
        lambda x, y: x.softmax(-1) @ y.t(),
        lambda x, y: F.layer_norm(x, (6,)) * y,
        lambda x, y: torch.where(x > y, x * 2, y),
        lambda x, y: torch.cat([x, y.relu()], 0)[1:, ::2],
        lambda x, y: x.t().contiguous().view(-1) * y.reshape(-1),
        lambda x, y: (x.sigmoid() * y).cumsum(0),
        lambda x, y: x.amax(-1) + y.prod(-1),
        lambda x, y: torch.linalg.svd(x @ y.t())[1],
        lambda x, y: x.sort(-1)[0] * y,
    ],
)
def test_gradients_equal_eager(function: Callable[..., Tensor]) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    for a, b in zip(gradients(compiled(function), x, y), gradients(function, x, y), strict=True):
        assert_like(a, b, rtol=1e-3, atol=1e-5)


def test_a_gradient_that_arrives_with_other_strides() -> None:
    function = compiled(lambda x: x * 2)
    x = torch.randn(4, 6, requires_grad=True)
    for tangent in (
        torch.randn(4, 6),
        torch.randn(6, 4).t(),
        torch.randn(1, 6).expand(4, 6),
        torch.ones(()).expand(4, 6),
    ):
        x.grad = None
        function(x).backward(tangent)
        torch.testing.assert_close(x.grad, 2 * tangent)


def test_a_graph_kept_for_a_second_backward() -> None:
    x = torch.randn(5, requires_grad=True)
    y = compiled(lambda x: (x.tanh() * x).sum())(x)
    y.backward(retain_graph=True)
    assert x.grad is not None
    first = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * first)


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be")
def test_a_custom_autograd_function() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 3

    def function(x: Tensor) -> Tensor:
        result: Tensor = Twice.apply(x.exp())  # type: ignore[no-untyped-call]
        return result

    for a, b in zip(
        gradients(compiled(function), torch.randn(5)), gradients(function, torch.randn(5) * 0), strict=True
    ):
        assert a.shape == b.shape
    x = torch.randn(5)
    for a, b in zip(gradients(compiled(function), x), gradients(function, x), strict=True):
        torch.testing.assert_close(a, b)


def test_frozen_parameters_get_no_gradient_and_others_do() -> None:
    model = multilayer()
    for p in model[0].parameters():  # type: ignore[index]
        p.requires_grad_(False)
    theirs = copy.deepcopy(model)
    x = torch.randn(3, 6)
    compiled(model)(x).sum().backward()
    theirs(x).sum().backward()
    for a, b in zip(model.parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_evaluation_between_training_steps_sees_the_new_parameters() -> None:
    model = multilayer()
    run = compiled(model)
    x = torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
        optimizer.zero_grad()
        run(x).sum().backward()
        optimizer.step()
