"""Symbolic sizes: one compilation serves all of them, as counts show."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, compiled, since


def test_one_compilation_serves_all_batch_sizes() -> None:
    model = nn.Sequential(nn.Linear(6, 20), nn.GELU(), nn.LayerNorm(20), nn.Linear(20, 3), nn.Softmax(-1)).eval()
    run = compiled(model, dynamic=True)
    before = metrics()
    with torch.no_grad():
        for batch in (4, 2, 7, 33, 128, 5):
            x = torch.randn(batch, 6)
            assert_like(run(x), model(x), rtol=1e-4, atol=1e-5)
            if batch == 4:
                first = since(before)
    count = since(before)
    assert count.graphs == 1
    assert (count.kernels_compiled, count.kernels_found) == (first.kernels_compiled, first.kernels_found)
    assert count.calls == 6


def test_a_second_size_makes_the_dimension_symbolic_and_a_third_compiles_nothing() -> None:
    run = compiled(lambda x: (x * 2).relu().sum(-1))
    counts = []
    for batch in (4, 9, 30, 17):
        x = torch.randn(batch, 6)
        before = metrics()
        assert_like(run(x), (x * 2).relu().sum(-1), rtol=1e-5, atol=1e-5)
        counts.append(since(before).graphs)
    assert counts == [1, 1, 0, 0]


def test_a_marked_dimension_is_symbolic_from_the_start() -> None:
    layer = nn.Conv2d(3, 8, 3, padding=1).eval()
    run = compiled(layer)
    before = metrics()
    with torch.no_grad():
        for batch in (2, 5, 3):
            x = torch.randn(batch, 3, 8, 8)
            torch._dynamo.mark_dynamic(x, 0)
            assert_like(run(x), layer(x), rtol=1e-4, atol=1e-5)
    assert since(before).graphs == 1


def test_two_symbolic_dimensions_in_attention() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    run = compiled(attend, dynamic=True)
    before = metrics()
    for batch, length in ((4, 5), (2, 17), (6, 8)):
        q, k, v = (torch.randn(batch, 3, length, 16) for _ in range(3))
        assert_like(run(q, k, v), attend(q, k, v), rtol=1e-4, atol=1e-5)
    assert since(before).graphs == 1


def test_sizes_reach_values_views_and_results() -> None:
    def f(x: Tensor, n: int) -> tuple[Tensor, Tensor, int, Tensor]:
        rows = x.shape[0]
        return x / rows, x[: rows // 2].reshape(-1), rows * 2 + n, torch.arange(rows) * n

    run = compiled(f, dynamic=True)
    for rows, n in ((6, 3), (9, 4), (12, 7)):
        x = torch.randn(rows, 5)
        assert_like(run(x, n), f(x, n), rtol=1e-5, atol=1e-6)


def test_externs_with_symbolic_sizes() -> None:
    def f(x: Tensor) -> Tensor:
        top = torch.topk(x.relu(), x.shape[0] // 2, 0)[0]
        return top * 2

    run = compiled(f, dynamic=True)
    before = metrics()
    for rows in (6, 9, 12):
        x = torch.randn(rows, 5)
        assert_like(run(x), f(x))
    assert since(before).graphs == 1


def test_training_with_a_symbolic_batch() -> None:
    layer = nn.Linear(6, 4)
    run = compiled(lambda x: layer(x).tanh(), dynamic=True)
    before = metrics()
    for batch in (3, 8, 5):
        x = torch.randn(batch, 6, requires_grad=True)
        run(x).sum().backward()
        mine, x.grad = x.grad, None
        layer.zero_grad()
        layer(x).tanh().sum().backward()
        torch.testing.assert_close(mine, x.grad, rtol=1e-4, atol=1e-6)
    assert since(before).graphs == 2


def test_strides_that_are_symbolic_too() -> None:
    def f(x: Tensor) -> Tensor:
        return x.t() * 2 + 1

    run = compiled(f, dynamic=True)
    for rows, columns in ((4, 6), (5, 9)):
        for x in (torch.randn(rows, columns), torch.randn(columns, rows).t(), torch.randn(rows, 2 * columns)[:, ::2]):
            assert_like(run(x), f(x))


def test_a_part_of_a_symbolic_axis_that_has_one_element_broadcasts() -> None:
    def f(x: Tensor) -> Tensor:
        return x.chunk(3, 1)[-1] * x

    run = compiled(f, dynamic=True)
    for n in (7, 5):  # in pieces of 3, 3, 1 and 2, 2, 1: the last is 1 by a guard, not by its expression
        x = torch.randn(n, n)
        assert_like(run(x), f(x))


def test_a_rolled_tensor_without_elements() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x[..., 3::2, None, :-1].roll(-1, 1)

    x = torch.randn(6, 1)[1::2]
    got = torch.compile(program, backend="taskmap", dynamic=True)(x)
    assert got.shape == program(x).shape == (0, 1, 0)


def test_views_of_an_argument_whose_new_value_is_not_needed() -> None:
    """The graph of the backward pass, whose results have no place among those of the first one."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.clamp_(-1, 1)
        return torch.meshgrid(x[0], x[:, 0], indexing="ij")[1], torch.logit(y)

    x, y = torch.randn(1, 1), torch.rand((), requires_grad=True)
    same = x.clone()
    want, got = program(same, y), torch.compile(program, backend="taskmap")(x, y)
    assert torch.equal(x, same)
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w)
    (gradient,), (expected,) = (torch.autograd.grad(results[1], y) for results in (got, want))
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("used", [False, True])
def test_a_slice_beyond_the_end_has_no_rows_but_symbolic_columns(used: bool) -> None:
    torch._dynamo.reset()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nothing = x[4::2]
        return (nothing * 2, nothing.sum(0), x + 1) if used else (nothing,)

    compiled = torch.compile(program, backend="taskmap", dynamic=True)
    for shape in ((4, 6), (4, 9), (3, 5)):
        x = torch.randn(*shape)
        torch.testing.assert_close(compiled(x), program(x))
