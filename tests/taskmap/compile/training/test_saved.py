"""Tensors saved for backward, whose strides the compiler chooses: gradients and results as in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.taskmap.compare import assert_like, compiled


class Convolutions(nn.Module):
    """Two convolutions whose first result is returned, pooled, and read as rows."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.GELU(), nn.MaxPool2d(2))
        self.head, self.again = nn.Linear(16, 5), again

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        z = checkpoint(self.second, y, use_reentrant=False) if self.again else self.second(y)
        return self.head(z.flatten(2).transpose(1, 2).mean(1)), z


def step(module: nn.Module, run: Callable[..., Any], x: Tensor) -> tuple[Any, list[Tensor | None]]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    scores, image = run(x)
    (scores.square().sum() + image.abs().mean()).backward()
    return (scores.detach(), image.detach()), [x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("given", ["rows", "channels together"])
@pytest.mark.parametrize("again", [False, True])
def test_gradients_have_eagers_values_and_strides(given: str, again: bool) -> None:
    module = Convolutions(again=again)
    other, x = copy.deepcopy(module), torch.randn(2, 3, 10, 12)
    x = x if given == "rows" else x.contiguous(memory_format=torch.channels_last)
    got, want = step(module, compiled(module), x), step(other, other, x)
    assert_like(got, want, 1e-3, 1e-4)


@pytest.mark.parametrize(
    "hooks",
    [
        nullcontext,
        torch.autograd.graph.save_on_cpu,
        lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.Tensor.contiguous),
    ],
)
def test_saved_tensors_that_come_back_with_other_strides(hooks: Callable[[], AbstractContextManager[None]]) -> None:
    module, x = Convolutions(), torch.randn(2, 3, 10, 12)
    other, run = copy.deepcopy(module), compiled(module)
    for _ in range(2):  # the second time, hooks find a compiled graph
        with hooks():
            got = step(module, run, x)
        want = step(other, other, x)
        assert_like(got, want, 1e-3, 1e-4)


@pytest.mark.parametrize(
    "program", [lambda x: x.sum(0).flip(0), lambda x: x.sin().flip(1, 0), lambda x: x.sum(0)[None]]
)
def test_reversed_results_are_saved(program: Callable[[Tensor], Tensor]) -> None:
    """In memory of their own: PyTorch has no negative strides."""

    def squared(x: Tensor) -> Tensor:
        y = program(x)
        return y * y

    for shape in ((6, 1), (6, 5)):
        x = torch.randn(shape, requires_grad=True)
        same = x.detach().clone().requires_grad_()
        torch._dynamo.reset()
        mine, right = torch.compile(squared, backend="taskmap")(x), squared(same)
        torch.testing.assert_close(mine, right)
        grads = [torch.autograd.grad(y.sum(), z) for y, z in ((mine, x), (right, same))]
        torch.testing.assert_close(*grads)
