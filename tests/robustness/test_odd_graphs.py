"""Graphs at the edges: irrelevant operands, many tensors, ragged tensors, names that are not identifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taskmap.torch_backend import compile_fx


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def _equal(function: Callable[..., Any], *args: Tensor) -> None:
    got, want = torch.compile(function, backend=compile_fx)(*args), function(*args)
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, equal_nan=True)


def test_operands_whose_value_does_not_matter() -> None:
    x, w = torch.randn(4, 3), torch.randn(3, 2)
    _equal(lambda x, w: (x**0, (x @ w) ** 0 + 1, x[:, :1].argmax(1)), x, w)


def test_numbers_without_dimensions() -> None:
    _equal(lambda x: (x.argmax(), x.argmin(), x.max(), x.softmax(0), x.cumsum(0)), torch.randn(()))


def test_groups_of_a_convolution_counted_by_a_size() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        weight = torch.arange(x.shape[1] * 4, dtype=x.dtype).sin().reshape(x.shape[1], 1, 2, 2)
        return (torch.split(F.conv2d(x, weight, padding=2, groups=x.shape[1]), 2, 1)[-1],)

    x = torch.randn(1, 5, 1, 1)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    _equal(function, x)


@pytest.mark.parametrize("count", [3, 65, 200])
def test_many_tensors_put_together(count: int) -> None:
    parts = [torch.randn(4, i % 3 + 1) for i in range(count)]
    _equal(lambda *parts: (torch.cat([p.relu() for p in parts], 1),), *parts)


def test_a_ragged_tensor() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    weight = torch.randn(4, 5)

    def function(x: Tensor) -> Tensor:
        return (x @ weight).relu()

    got, want = torch.compile(function, backend=compile_fx)(ragged), function(ragged)
    for a, b in zip(got.unbind(), want.unbind(), strict=True):
        torch.testing.assert_close(a, b)


def test_names_of_modules_that_are_no_identifiers() -> None:
    model = nn.Sequential()
    model.add_module('*/ #error "x\n\\', nn.Linear(3, 3))
    model.add_module("é; ??/", nn.Linear(3, 3))
    x = torch.randn(2, 3)
    with torch.no_grad():
        _equal(lambda x: (model(x),), x)


@pytest.mark.parametrize("shapes", [((4, 0), (0, 5)), ((0, 3), (3, 5)), ((0, 0), (0, 0))])
def test_products_of_nothing(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    a, b = (torch.randn(s) for s in shapes)
    _equal(lambda a, b: (a @ b, a @ b + 1, a.sum(1), a.mean(0), b.relu()), a, b)
