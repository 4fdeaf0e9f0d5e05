"""Embedding bags: of equal lengths they are a gather and a reduction, any others run in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import taskmap.torch_backend  # noqa: F401  # registers the backend
from taskmap.report.explain import explain

IDS = torch.tensor([[3, 0, 9], [9, 9, 1], [4, 5, 6], [0, 0, 0]])


class Bags(nn.Module):
    """Two tables, side by side."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10, 16, mode=mode) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([table(ids) for table in self.tables], 1)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_a_matrix_are_compiled(mode: str) -> None:
    module = Bags(mode)
    with torch.no_grad():
        result = torch.compile(module, backend="taskmap")(IDS)
        exact = Bags(mode).double()
        exact.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
        torch.testing.assert_close(result.double(), exact(IDS), rtol=1e-6, atol=1e-6)
        assert explain(module, IDS).externs == ()


def test_a_row_that_does_not_exist_is_reported() -> None:
    with torch.no_grad(), pytest.raises(IndexError):
        torch.compile(Bags("sum"), backend="taskmap")(IDS + 1)


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({}, (IDS.flatten(), torch.tensor([0, 1, 5, 8]))),
        ({}, (IDS.flatten(), torch.tensor([0, 2, 4, 6]))),
        ({"padding_idx": 9}, (IDS,)),
        ({}, (IDS, None, torch.rand(4, 3))),
        ({"include_last_offset": True}, (IDS.flatten(), torch.tensor([0, 1, 5, 12]))),
    ],
)
def test_other_bags_run_in_pytorch(settings: dict[str, object], arguments: tuple[Tensor | None, ...]) -> None:
    module = nn.EmbeddingBag(10, 16, mode="sum", **settings)  # type: ignore[arg-type]  # of several types
    with torch.no_grad():
        expected, result = module(*arguments), torch.compile(module, backend="taskmap")(*arguments)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_nan_is_where_eager_has_it(mode: str) -> None:
    """A maximum keeps a NaN only where it comes first in its bag: PyTorch computes it."""
    module = Bags(mode)
    with torch.no_grad():
        for table in module.parameters():
            table[9] = torch.nan
        result = torch.compile(module, backend="taskmap")(IDS)
        torch.testing.assert_close(result, module(IDS), equal_nan=True)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_gradients_are_eagers(mode: str) -> None:
    """The backward pass reads results other than the first, which only PyTorch makes."""
    module = Bags(mode)
    (torch.compile(module, backend="taskmap")(IDS) ** 2).sum().backward()
    found = [p.grad for p in module.parameters()]
    module.zero_grad()
    (module(IDS) ** 2).sum().backward()
    for mine, p in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad)
