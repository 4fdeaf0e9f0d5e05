"""Integers among the arguments are symbolic numbers of any sign; sizes are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, compiled, since

X = torch.linspace(-3, 3, 20 * 20).reshape(20, 20)


def run_at(function: Callable[[Tensor, int], object], *numbers: int) -> int:
    """Compare with eager at each number; returns the number of compiled graphs."""
    run, before = compiled(function), metrics()
    for n in numbers:
        assert_like(run(X, n), function(X, n), rtol=1e-5, atol=1e-5)
    return since(before).graphs


def test_numbers_of_any_sign_in_values() -> None:
    def f(x: Tensor, n: int) -> tuple[Tensor, ...]:
        below = torch.arange(20)[:, None] < n
        most: int = torch.sym_max(n, 0)  # type: ignore[no-untyped-call]
        return x + n // 2, x + n % 3, x * most, x * abs(n), x.roll(n, 0) + 1, torch.where(below, x, 0), x.tril(n) * n

    assert run_at(f, 3, 5, -4, 8, -7, 0, -20) == 2


def test_a_number_that_is_returned() -> None:
    def f(x: Tensor, n: int) -> tuple[Tensor, int, int]:
        return x * n, 3 * n + 1, -n

    run_at(f, 3, 5, -4, 8, -7, 0)


def test_slices_from_either_end() -> None:
    def f(x: Tensor, n: int) -> tuple[Tensor, ...]:
        return x[-n:] + 1, x[:n] * 2, x[n:] + 3, x[n - 1] + 4

    run_at(f, 3, 5, 11, 2, -4, -7, -2)


@pytest.mark.parametrize("rows", [True, False])
def test_scatters_at_numbers_from_either_end(rows: bool) -> None:
    def f(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        ones = torch.ones_like(x[n:])
        return torch.slice_scatter(x, ones, 0, n) + 1, torch.select_scatter(x, x[0] + 1, 0 if rows else 1, n) * 2

    run_at(f, 3, 5, 11, -4, -7)


@pytest.mark.parametrize("fast_math", [False, True])
def test_sizes_in_floating_point_are_exact_whatever_arithmetic_is_allowed(fast_math: bool) -> None:
    """With -ffast-math a compiler turns n / 4.9 into a product with a rounded 1 / 4.9, which is smaller at 49."""
    torch._dynamo.reset()

    def first(x: Tensor) -> Tensor:
        return x[: int(x.shape[0] / 4.9)].softmax(1)

    compiled = torch.compile(first, backend="taskmap", dynamic=True, options={"fast_math": fast_math})
    for rows in (52, 49, 98, 196):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(compiled(x), first(x))
