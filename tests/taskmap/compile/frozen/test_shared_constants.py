"""Constants that several graphs have computed alike are kept once."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from taskmap.compile import shared_constants
from taskmap.compile.frozen import FrozenGraph
from taskmap.compile.shared_constants import kept_once


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()


class Blocks:
    """Gives plain tensors, and counts their bytes."""

    def __init__(self) -> None:
        self.asked: list[dict[int, int]] = []

    def __call__(self, sizes: Mapping[int, int]) -> Blocks:
        self.asked.append(dict(sizes))
        return self

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype)


def constants(seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(100, 100), torch.randn(160, 90).bfloat16().t(), torch.randn(3)]


def test_equal_constants_are_one_and_the_others_are_copied() -> None:
    blocks = Blocks()
    first = kept_once(constants(1), blocks, [])
    assert not blocks.asked
    again = constants(1)
    again[1] = again[1] * 2
    second = kept_once(again, blocks, [])
    assert second[0] is first[0]
    assert [torch.equal(a, b) for a, b in zip(second, again, strict=True)] == [True] * 3
    assert [v.stride() for v in second] == [v.stride() for v in again]
    assert [set(sizes) for sizes in blocks.asked] == [{1, 2}]
    third = kept_once(constants(1), blocks, [])
    assert third[0] is first[0]
    assert third[1] is first[1]


def test_nan_and_zeros_of_both_signs_are_compared_as_bytes() -> None:
    blocks = Blocks()
    nan, zero = torch.full((80, 80), float("nan")), torch.zeros(80, 90)
    first = kept_once([nan, zero], blocks, [])
    second = kept_once([nan.clone(), -zero], blocks, [])
    assert second[0] is first[0]
    assert second[1] is not first[1]
    assert torch.signbit(second[1]).all()


def test_one_element_that_no_sample_shows_makes_another_constant() -> None:
    blocks = Blocks()
    one = torch.zeros(100, 1000)
    first = kept_once([one], blocks, [])
    other = one.clone()
    other[57, 123] = 1
    second = kept_once([other], blocks, [])
    assert second[0] is other
    assert kept_once([one.clone()], blocks, [])[0] is first[0]


def test_views_of_parameters_and_constants_in_parts_of_memory_stay() -> None:
    blocks = Blocks()
    parameter = torch.randn(100, 100)
    first = kept_once([parameter.t(), parameter[:, ::2]], blocks, [parameter])
    assert kept_once([parameter.t().contiguous().t()], blocks, [])[0] is not first[0]


def test_constants_go_with_their_last_graph() -> None:
    blocks = Blocks()
    first = kept_once(constants(2), blocks, [])
    known = len(shared_constants._KNOWN)
    del first
    gc.collect()
    kept_once(constants(2), blocks, [])
    assert len(shared_constants._KNOWN) <= known


def frozen_graphs() -> list[FrozenGraph]:
    return [o for o in gc.get_objects() if type(o) is FrozenGraph]


def test_a_model_called_with_many_sizes_packs_its_weights_once() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).eval()
    run = torch.compile(model, backend="taskmap", dynamic=False)
    before = {id(g) for g in frozen_graphs()}
    with torch.no_grad():
        for rows in (64, 128, 200):
            x = torch.randn(rows, 256)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
        graphs = [g for g in frozen_graphs() if id(g) not in before]
        assert len(graphs) == 3
        values = [v for g in graphs if g.prepared is not None for v in g.prepared.values]
        storages = {v.untyped_storage()._cdata: v.untyped_storage().nbytes() for v in values if v.nbytes > 1 << 14}
        assert sum(storages.values()) < 2 * sum(p.nbytes for p in model.parameters())
        model[0].weight.data.mul_(2)  # type: ignore[operator]
        for rows in (128, 64, 200, 128):
            x = torch.randn(rows, 256)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
