"""Several symbolic sizes at once, each with values of its own: no two of them are ever confused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.independent import check_independent, is_pytorchs_own, program
from tests.taskmap.compare import assert_like, compiled


def test_the_gradient_of_a_mean_divides_by_both_sizes() -> None:
    run = compiled(F.mse_loss)
    for shape in ((3, 4), (5, 7), (6, 9)):
        x, y = torch.randn(shape, requires_grad=True), torch.randn(shape)
        (mine,) = torch.autograd.grad(run(x, y), x)
        (theirs,) = torch.autograd.grad(F.mse_loss(x, y), x)
        assert_like(mine, theirs, rtol=1e-5, atol=1e-7)


def test_the_input_gradient_of_group_norm() -> None:
    layer = nn.GroupNorm(2, 4)
    run = compiled(layer)
    for shape in ((2, 4, 3, 5), (3, 4, 5, 7), (5, 4, 7, 3), (7, 4, 2, 5)):
        x, up = torch.randn(shape, requires_grad=True), torch.randn(shape)
        (mine,) = torch.autograd.grad(run(x), x, up)
        (theirs,) = torch.autograd.grad(layer(x), x, up)
        assert_like(mine, theirs, rtol=1e-4, atol=1e-5)


def test_values_divided_by_different_sizes_differ() -> None:
    def f(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return v / x.shape[0] - v / y.shape[0]

    run = compiled(f, dynamic=True)
    for rows, columns in ((3, 5), (5, 3), (7, 2)):
        inputs = torch.randn(11), torch.randn(rows, 2), torch.randn(columns, 2)
        assert_like(run(*inputs), f(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.5, 0.7])
def test_sizes_computed_in_floating_point(scale: float) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.interpolate(x.exp(), scale_factor=scale, mode="linear", align_corners=True)
        return y, y.softmax(-1).cumsum(-1) @ y.mT

    run = compiled(f, dynamic=True)
    for shape in ((5, 4, 6), (3, 2, 7), (2, 5, 11)):
        x = torch.randn(shape)
        for mine, theirs in zip(run(x), f(x), strict=True):
            assert_like(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.5, 0.7])
def test_rows_of_a_product_are_a_size_computed_in_floating_point(scale: float) -> None:
    def f(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = F.interpolate(x, scale_factor=scale, mode="nearest")
        return y, F.linear(y, w, b)

    run = compiled(f, dynamic=True)
    for shape in ((7, 6, 7, 4), (3, 2, 5, 4), (2, 5, 11, 4)):
        inputs = torch.randn(shape), torch.randn(3, int(4 * scale)), torch.randn(3)
        for mine, theirs in zip(run(*inputs), f(*inputs), strict=True):
            assert_like(mine, theirs, rtol=1e-4, atol=1e-4)


def test_plans_print_sizes_as_formulas(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=1.5).cumsum(1)

    torch.compile(f, backend="taskmap", dynamic=True, options={"dump_dir": str(tmp_path)})(torch.randn(3, 2, 7))
    texts = [f.read_text() for f in tmp_path.rglob("*") if "plan" in f.name or "graph" in f.name]
    assert any("i64(trunc(f64(1.5) * f64(n" in text for text in texts)
    assert not any("Binary(" in text or "Cast(" in text for text in texts)


@pytest.mark.parametrize("size", [7, 11, 40_001])
def test_the_layer_norm_of_equal_numbers_is_zero_for_any_number_of_them(size: int) -> None:
    x = torch.tensor(0.7).expand(size)
    assert not compiled(lambda x: F.layer_norm(x, x.shape), dynamic=True)(x).any()
    assert not compiled(lambda x: F.layer_norm(x, x.shape), dynamic=False)(x).any()


@pytest.mark.filterwarnings("ignore:std")
def test_what_pytorch_itself_refuses_is_left_out() -> None:
    """The gradient divides by a size less two, which AOTAutograd evaluates for a size of two. Errors of ours count."""
    given = program(lambda x: x.std(0, correction=2), (torch.randn(3, 5),))
    assert check_independent(given) == 2
    places = {(0, 0): 2, (0, 1): 3}
    assert not is_pytorchs_own(RuntimeError("backend\nours"), given, places, trained=True)
    sound = program(lambda x: x.sum(0), (torch.randn(3, 5),))
    assert not is_pytorchs_own(RuntimeError("backend\nours"), sound, places, trained=True)
