"""Sizes computed from symbolic ones that are 0 in some calls: no kernel reads a tensor without elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

import pytest
import torch

from taskmap.util.metrics import metrics
from tests.taskmap.compare import since

Function = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Function] = {
    "diff of a part": lambda x: torch.diff(x.tensor_split(2, 0)[1], dim=0),
    "joined with half": lambda x: torch.cat([x[x.shape[0] // 2 + 1 :], x[:1]]) * 2,
    "padded": lambda x: torch.nn.functional.pad(x[2:].sin(), (1, 2)),
    "written into": lambda x: torch.slice_scatter(x, x[2:].exp(), 0, 1, x.shape[0] - 1),
    "sum of a part": lambda x: x[2:].sum() + x,
    "rows": lambda x: torch.cat([x[None, 3:].expand(4, -1).softmax(0).flatten(), x]),
}
ORDERS = list(permutations((2, 3, 5, 7)))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("order", ORDERS[::5], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, order: tuple[int, ...]) -> None:
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="taskmap", dynamic=True)
    for size in order:
        x = torch.randn(size, requires_grad=True)
        got, want = compiled(x), program(x)
        torch.testing.assert_close(got, want)
        # The gradient of a sum is one number, expanded: without elements, it has no memory.
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), want)


def test_other_sizes_share_a_graph() -> None:
    compiled = torch.compile(PROGRAMS["padded"], backend="taskmap", dynamic=True)
    before = metrics()
    with torch.no_grad():
        for size in (5, 2, 7, 4, 11):
            compiled(torch.randn(size))
    assert since(before).graphs == 2  # and one for the empty part
