"""Writes at data-dependent positions, through the importer against PyTorch: types, equal and negative positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from taskmap.errors import IndexOutOfRangeError
from tests.graph.importers.test_operators import check, draw

aten = torch.ops.aten
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def positions(size: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatter_of_many_positions(dim: int) -> None:
    x, s, i = draw(4, 5, 6), draw(4, 5, 8), positions((4, 5, 6)[dim], 3, 4, 5)
    check(lambda x, i, s: (x.scatter(dim, i, s), x.scatter_add(dim, i, s), x.scatter(dim, i, 2.5)), x, i, s)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type(dtype: torch.dtype) -> None:
    x, s, i = draw(5, 3, dtype=dtype), draw(9, 3, dtype=dtype), positions(5, 9, 3)
    check(lambda x, i, s: (x.scatter(0, i, s), x.scatter_add(0, i, s), x.index_add(0, i[:, 0], s)), x, i, s)
    check(lambda x, i, s: (x.index_put((i,), s, accumulate=True), x.index_put((i,), s)), x, i[:, 0], s)
    for how in ("sum", "prod", "amax", "amin", *(() if dtype == torch.bool else ("mean",))):
        check(lambda x, i, s, how=how: x.scatter_reduce(0, i, s, how), x, i, s)
        check(lambda x, i, s, how=how: x.scatter_reduce(0, i, s, how, include_self=False), x, i, s)


@given(data=st.data())
def test_index_put_by_any_tensors(data: st.DataObject) -> None:
    shape = (3, 4, 5)
    indexed = [data.draw(st.booleans()) for _ in shape]
    if not any(indexed):
        indexed[0] = True
    kinds = [(6,), (1,), (2, 6), (2, 1), ()]
    drawn = {d: data.draw(st.sampled_from(kinds)) for d, chosen in enumerate(indexed) if chosen}
    given = [positions(2 * shape[d], *drawn[d], seed=d) - shape[d] if d in drawn else None for d in range(3)]
    x = draw(*shape)
    values = draw(*aten.index.Tensor(x, given).shape)
    check(
        lambda x, v, *i: aten.index_put(x, _among(given, i), v, True), x, values, *(i for i in given if i is not None)
    )


def _among(shape: list[torch.Tensor | None], tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor | None]:
    rest = iter(tensors)
    return [None if i is None else next(rest) for i in shape]


def test_the_last_of_equal_positions_stays() -> None:
    i = torch.tensor([1, 1, 0, 1])
    check(lambda x, i, s: (x.index_copy(0, i, s), x.scatter(0, i[:, None].expand(4, 3), s)), draw(4, 3), i, draw(4, 3))


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce_and_alpha() -> None:
    x, i, s = draw(4, 6, 3), positions(6, 8), draw(4, 8, 3)
    check(lambda x, i, s: (x.index_add(1, i, s, alpha=-2.5), x.index_copy(1, i[:1], s[:, :1])), x, i, s)
    for how in ("prod", "mean", "amax", "amin"):
        check(lambda x, i, s, how=how: x.index_reduce(1, i, s, how, include_self=False), x, i, s)


def test_masks() -> None:
    x, m = draw(4, 5, 3), draw(4, 5) > 0
    check(lambda x, m, v: (x.index_put((m,), v), x.index_put((m,), v, accumulate=True)), x, m, torch.tensor(2.0))
    check(lambda x, m, v: x.index_put((m,), v), x, m, draw(3))
    check(lambda x, m, v: aten.index_put(x, [None, m], v), x, draw(5, 3) > 0, draw(4, 1))


def test_nan_wins_extrema() -> None:
    nan = float("nan")
    x, i, s = torch.tensor([1.0, nan, -0.0, 5.0]), torch.tensor([0, 1, 3, 3]), torch.tensor([nan, 1.0, nan, 7.0])
    check(
        lambda x, i, s: (x.scatter_reduce(0, i, s, "amax"), x.scatter_reduce(0, i, s, "amin", include_self=False)),
        x,
        i,
        s,
    )


def test_tensors_without_dimensions_and_without_elements() -> None:
    scalar, zero = torch.tensor(2.0), torch.tensor(0)
    check(lambda x, i: (x.scatter(0, i, x), x.index_add(0, i, x), x.scatter_reduce(0, i, x, "mean")), scalar, zero)
    check(lambda x, i: (x.index_add(0, i, x[:1]), x.index_copy(0, i, x[:1])), draw(3, 2), torch.tensor(1))
    x, none = draw(3, 2), torch.zeros(0, 2, dtype=torch.int64)
    check(lambda x, i, s: (x + 0, x.scatter_add(0, i, s), x.index_add(0, i[:, 0], s)), x, none, torch.zeros(0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_an_embedding(dtype: torch.dtype) -> None:
    g, i = draw(7, 5, 6, dtype=dtype), positions(10, 7, 5)
    for padding, frequency in ((-1, False), (3, False), (3, True)):
        check(lambda g, i, p=padding, f=frequency: aten.embedding_dense_backward(g, i, 10, p, f), g, i)
    outside = positions(14, 7, 5) - 2  # a position out of range gets nothing, as in PyTorch
    check(lambda g, i: aten.embedding_dense_backward(g, i, 10, -1, False), g, outside)


def test_training_an_embedding_is_native() -> None:
    weight = draw(11, 4).requires_grad_()
    traced_weight = weight.detach().clone().requires_grad_()
    i = positions(11, 3, 5)

    def loss(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        gradient: torch.Tensor = torch.autograd.grad(F.embedding(i, w, padding_idx=2).square().sum(), w)[0]
        return gradient

    check(loss, traced_weight, i)


OUT_OF_RANGE: dict[str, Callable[..., Any]] = {
    "scatter": lambda x, i, s: x.scatter(0, i, s),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i, s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "index_put": lambda x, i, s: x.index_put((i,), s),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
@pytest.mark.parametrize("position", [5, -6, -1])
def test_a_position_out_of_range_is_reported(name: str, position: int) -> None:
    function, args = OUT_OF_RANGE[name], (draw(5), torch.tensor([0, position]), draw(2))
    if position == -1 and name == "index_put":
        check(function, *args)
        return
    with pytest.raises((IndexError, RuntimeError)):
        function(*args)
    with pytest.raises(IndexOutOfRangeError):
        check(function, *args)


def test_many_values_under_a_mask_are_left_to_pytorch() -> None:
    x, m = draw(4, 5), draw(4, 5) > 0
    traced = check(lambda x, m, v: x.index_put((m,), v), x, m, draw(int(m.sum())), native=False)
    assert [n.reason for n in traced.externs] == ["writing by a mask with one value per selected position"]
