"""Training graphs: no kernel does more than its numbers need, and what backward reads is laid out for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from taskmap.compile.session import Compilation, new_session
from taskmap.graph.fusion.planning import Group
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim, Expr, Load, Reduce
from taskmap.ir.visit import children
from taskmap.options import Options
from taskmap.torch_backend import compile_captured

MOST = 256
"""Operations for each number that a kernel reads or writes: nine windows, and what is done with the elements of each.
An attention of 96 keys that computed its scores anew for every key took 16,000."""
FOLLOWED = ("contraction", "attention", "recurrence")
"""Kinds of kernels whose templates keep what several elements need."""


def compilations(module: nn.Module, *inputs: Tensor) -> list[Compilation]:
    """The forward and the backward graph of a training step."""
    session = new_session(Options(threads=1))
    session.record = []
    run = torch.compile(module, backend=lambda gm, given: compile_captured(gm, given, session))
    result = run(*inputs)
    result.float().square().mean().backward()
    found = [c for c in session.record if isinstance(c, Compilation)]
    assert [c.name for c in found] == ["forward", "backward"]
    return found


def operations(e: Expr) -> int:
    """The scalar operations of an expression, evaluated as it is written; those of its indices do not count."""
    if isinstance(e, Load):
        return 0
    inner = sum(map(operations, children(e)))
    if isinstance(e, Reduce):
        return (inner + 1) * math.prod(size(n) for _, n in e.axes)
    return inner + bool(children(e))


def size(n: Dim) -> int:
    known = static_size(n)
    assert known is not None
    return known


def work(group: Group) -> float:
    """Operations for each number that a group reads or writes."""
    done = sum(operations(s.body) * math.prod(map(size, s.shape)) for s in group.task.stages)
    moved = sum(math.prod(map(size, b.shape)) for b in (*group.task.inputs, *group.task.outputs))
    return done / max(moved, 1)


class Attending(nn.Module):
    """A transformer layer's attention."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.into, self.causal = nn.Linear(32, 96), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.into(x).chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def convolutions(*after: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), *after)


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "attention": lambda: (Attending(False), torch.randn(2, 96, 32)),
    "causal attention": lambda: (Attending(True), torch.randn(2, 96, 32)),
    "max pooling": lambda: (convolutions(nn.MaxPool2d(2), nn.Conv2d(16, 16, 3)), torch.randn(2, 3, 32, 32)),
    "overlapping windows": lambda: (convolutions(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1)), torch.randn(2, 3, 32, 32)),
    "interpolation": lambda: (convolutions(nn.Upsample(scale_factor=2, mode="bilinear")), torch.randn(2, 3, 16, 16)),
    "group norm": lambda: (
        convolutions(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 8, 1)),
        torch.randn(2, 3, 16, 16),
    ),
    "layer norm": lambda: (nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU()), torch.randn(50, 32)),
}


def groups(found: list[Compilation]) -> Iterator[Group]:
    for compilation in found:
        yield from (s for s in compilation.plan.steps if isinstance(s, Group))


@pytest.mark.parametrize("case", CASES)
def test_no_kernel_computes_the_same_again(case: str) -> None:
    for group in groups(compilations(*CASES[case]())):
        if group.kind not in FOLLOWED:
            assert work(group) < MOST, group


def test_what_is_saved_after_a_convolution_has_its_channels_together() -> None:
    """Convolutions write channels innermost; backward kernels would gather single elements of saved rows."""
    module, x = CASES["max pooling"]()
    forward, backward = compilations(module, x)
    saved = [
        v for v in forward.parts.main.binding.made.values() if len(v.shape) == 4 and v.shape[2] == v.shape[3] == 32
    ]
    assert saved
    assert all(v.strides[1] == 1 for v in saved)
    (kernel,) = (k for group, k in backward.kernels.items() if "max_pool_backward" in group.name)
    assert "_strided_" not in kernel.source.text
    assert "_gather_" not in kernel.source.text


def test_gradients_with_saved_tensors_of_other_strides() -> None:
    module, x = CASES["max pooling"]()
    run: Any = torch.compile(module, backend="taskmap")
    grads = []
    for function in (run, module):
        module.zero_grad()
        function(x).square().mean().backward()
        grads.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
