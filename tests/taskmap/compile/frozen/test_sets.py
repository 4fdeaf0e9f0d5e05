"""One compiled graph called with the parameters of several layers or models: the constants of each are kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taskmap.util import held_storages
from taskmap.util.held_storages import HeldStorages, abandoned
from taskmap.util.metrics import metrics
from tests.taskmap.compare import since

SIZE = 96


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.outer(torch.relu(self.inner(x)))
        return y


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()


def compiled(layer: nn.Module, **options: Any) -> Any:
    return torch.compile(layer, backend="taskmap", options=options)


def right(run: Any, layer: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("check_frozen", [True, False])
def test_layers_compiled_one_by_one_are_prepared_once_each(check_frozen: bool) -> None:
    """As `for layer in layers: layer.compile()` does: TorchDynamo makes one graph of all."""
    layers = [Layer().eval() for _ in range(4)]
    runs = [compiled(layer, check_frozen=check_frozen) for layer in layers]
    x = torch.randn(3, SIZE)
    before = metrics()
    for _ in range(3):
        for run, layer in zip(runs, layers, strict=True):
            right(run, layer, x)
    assert since(before).graphs == 1
    assert since(before).constants_prepared == 4


def test_a_write_to_one_layer_is_noticed_and_the_others_stay() -> None:
    layers = [Layer().eval() for _ in range(3)]
    runs = [compiled(layer) for layer in layers]
    x = torch.randn(3, SIZE)
    for run, layer in zip(runs, layers, strict=True):
        right(run, layer, x)
    before = metrics()
    layers[1].inner.weight.data[5, 7] += 3
    for run, layer in zip(runs, layers, strict=True):
        right(run, layer, x)
    assert since(before).constants_prepared == 1


def test_a_parameter_of_two_layers_is_noticed_by_both() -> None:
    first, second = Layer().eval(), Layer().eval()
    second.inner = first.inner
    runs = [compiled(first), compiled(second)]
    x = torch.randn(3, SIZE)
    for _ in range(2):
        for run, layer in zip(runs, (first, second), strict=True):
            right(run, layer, x)
        first.inner.weight.data.mul_(1.5)
    for run, layer in zip(runs, (first, second), strict=True):
        right(run, layer, x)


def held() -> int:
    alive = [reference() for reference in held_storages._ALL.values()]
    return sum(one.storages.total() for one in alive if one is not None)


def test_constants_of_parameters_that_are_gone_go_too() -> None:
    """With new parameters at every call, and two graphs that use each."""
    layer = Layer().eval()
    run, other = compiled(layer), compiled(nn.Sequential(layer, nn.ReLU()).eval())
    x = torch.randn(3, SIZE)
    gc.collect()
    before, found = held(), []
    for _ in range(6):
        layer.inner.weight.data = torch.randn(2 * SIZE, SIZE)
        right(run, layer, x)
        with torch.no_grad():
            torch.testing.assert_close(other(x), torch.relu(layer(x)), rtol=1e-4, atol=1e-4)
        gc.collect()
        found.append(held() - before)
    assert max(found[1:]) <= 2 * found[0], "each graph keeps one stale set at most, until it prepares the next"


def test_a_model_that_is_gone_leaves_at_the_next_preparation() -> None:
    layers = [Layer().eval() for _ in range(4)]
    x = torch.randn(3, SIZE)
    gc.collect()
    before = held()
    for layer in layers:
        right(compiled(layer), layer, x)
    every = held() - before
    assert every % 4 == 0
    assert every > 0
    del layers, layer
    gc.collect()
    last = Layer().eval()
    right(compiled(last), last, x)
    gc.collect()
    assert held() - before <= every // 2


def test_memory_is_abandoned_when_its_last_user_goes() -> None:
    tensor, other = torch.randn(10, 10), torch.randn(5)
    one = HeldStorages([tensor, other])
    assert abandoned([one]) == [False]
    view = tensor[2:4]
    two = HeldStorages([view, view])
    del tensor
    assert abandoned([one, two]) == [False, False]
    del view
    assert abandoned([one, two]) == [True, True]
    del two
    assert abandoned([one]) == [True]


def test_where_nobody_counts_users_one_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_storages, "_use_count", None)
    layers = [Layer().eval() for _ in range(2)]
    runs = [compiled(layer) for layer in layers]
    x = torch.randn(3, SIZE)
    before = metrics()
    for _ in range(2):
        for run, layer in zip(runs, layers, strict=True):
            right(run, layer, x)
    assert since(before).constants_prepared == 4
