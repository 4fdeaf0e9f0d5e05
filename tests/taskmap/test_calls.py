"""Graphs called with arrays: the memory of results and constants, and arguments of any layout."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import helper

import taskmap.calls.memory
from taskmap.backend.program.arrays import address_of, element_strides, part_of
from taskmap.calls.arrays import ConstantArrays, KeptArrays
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, convnet, model

SHAPE, STRIDES, F32 = (1024, 512), (512, 1), np.dtype(np.float32)


@pytest.fixture(autouse=True)
def nothing_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts the memory kept by all graphs of a process, including earlier tests'."""
    monkeypatch.setattr(taskmap.calls.memory, "_ALL", {})


def take(pool: KeptArrays, shape: tuple[int, ...] = SHAPE, strides: tuple[int, ...] = STRIDES) -> Any:
    return pool.take(0, shape, strides, F32)


def test_memory_that_nobody_holds_is_used_again() -> None:
    pool = KeptArrays()
    first = take(pool)
    address = address_of(first)
    assert address % 64 == 0
    del first
    again = take(pool, (512, 1024), (1, 512))
    assert address_of(again) == address
    assert element_strides(again) == (1, 512)
    del again
    assert take(pool, (8, 8), (8, 1)).shape == (8, 8)  # of another size


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x,
        lambda x: x[3:5, ::2],
        lambda x: x.reshape(-1).view(np.int32),
        memoryview,
        torch.from_numpy,
        lambda x: x.base,
        lambda x: weakref.ref(x.base),
        lambda x: part_of(x, (2, 2), (2, 1), 5),
    ],
)
def test_memory_that_anything_shows_is_left_alone(hold: Callable[[Any], Any]) -> None:
    pool = KeptArrays()
    first = take(pool)
    address, held = address_of(first), hold(first)
    del first
    assert address_of(take(pool)) != address
    del held


def test_all_graphs_together_keep_a_limited_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskmap.calls.memory, "MOST", 5 << 20)
    pools = [KeptArrays() for _ in range(3)]
    for pool in pools:
        take(pool)
    assert [pool.bytes > 0 for pool in pools] == [True, True, False]
    pools[0].clear()
    assert pools[0].bytes == 0


def test_constants_lie_apart_and_outlive_the_block() -> None:
    memory = ConstantArrays({3: 40, 5: 4096, 9: 0})
    small, large = memory.take(3, (2, 5), (1, 2), F32), memory.take(5, (1024,), (1,), F32)
    assert memory.take(9, (0, 4), (4, 1), np.dtype(np.float64)).size == 0
    small[...], large[...] = 1, 2
    memory.clear()
    del memory
    assert element_strides(small) == (1, 2)
    assert address_of(large) - address_of(small) == 64
    assert (small.sum(), large.sum()) == (10, 2048)


def test_every_run_has_a_block_of_its_own() -> None:
    memory = ConstantArrays({0: 64, 1: 64})
    first, second = ([memory.take(i, (16,), (1,), F32) for i in (0, 1)] for _ in range(2))
    assert {address_of(x) for x in first}.isdisjoint(address_of(x) for x in second)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_, np.int8])
def test_a_part_shows_the_memory_of_its_base(dtype: Any) -> None:
    base = np.arange(24).astype(dtype).reshape(4, 6)
    part = part_of(base, (2, 3), (12, 2), 1)
    assert part.dtype == base.dtype
    np.testing.assert_array_equal(
        part.astype(np.float32), base.reshape(-1)[[[1, 3, 5], [13, 15, 17]]].astype(np.float32)
    )
    part[...] = np.zeros((), dtype)
    assert not base.reshape(-1)[[1, 3, 5, 13, 15, 17]].any()
    inner = part_of(base.T, (2,), (1,), 2)
    np.testing.assert_array_equal(inner, base.reshape(-1)[2:4])


def test_kernels_are_ranges_of_the_profiler() -> None:
    proto, inputs = convnet()
    compiled = load_model(proto)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        (shown,) = compiled(inputs)
    assert any(event.name.startswith("taskmap::") for event in profiled.events() or ())
    np.testing.assert_array_equal(shown, compiled(inputs)[0])


def test_large_results_get_the_memory_of_earlier_ones() -> None:
    """Through the model's own call, which a repeated one of small arrays passes by."""
    node = helper.make_node("Neg", ["x"], ["y"])
    compiled = load_model(model([node], {"x": (FLOAT, [1 << 19])}, ["y"]))
    x = np.ones(1 << 19, np.float32)
    (first,) = compiled(x)
    address = address_of(first)
    kept = first[:3]
    del first
    (second,) = compiled(2 * x)
    assert address_of(second) != address
    assert kept.tolist() == [-1, -1, -1]
    address = address_of(second)
    del second
    assert address_of(compiled(3 * x)[0]) == address


def test_inputs_may_be_read_only_and_are_never_results() -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    compiled = load_model(model([node], {"x": (FLOAT, [3])}, ["y"]))
    x = np.arange(3, dtype=np.float32)
    x.flags.writeable = False
    for _ in range(3):
        (y,) = compiled(x)
        y += 1
        assert y.tolist() == [1, 2, 3]
    assert x.tolist() == [0, 1, 2]
