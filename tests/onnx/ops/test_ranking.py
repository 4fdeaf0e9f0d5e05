"""TopK, compiled for few elements or short rows, else on the host, against a stable sort by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from taskmap.graph.importers.onnx.ops.ranking import LONGEST_RANKED, MOST_WALKED, MOST_WALKS, WALKS
from taskmap.ir.errors import TaskmapError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import elem_of, load_model
from tests.onnx.models import model

WALKED, RANKED, SORTED = (3, 40), (MOST_WALKS + 5, 60), (WALKS + 8, LONGEST_RANKED + 70)


def top_k(dtype: Any, sizes: list[Any], count: int, axis: int, largest: int) -> onnx.ModelProto:
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=axis, largest=largest)
    elem = elem_of(np.dtype(dtype))
    return model([node], {"x": (elem, sizes)}, ["values", "places"], {"k": np.array([count])})


def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
    """Few distinct numbers, so that many are equal; infinities among the floats."""
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(0, 9, shape).astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(shape) < 0.2] = np.inf
        x[rng.random(shape) < 0.2] = -np.inf
    return x


def check(got: list[Any], x: Any, count: int, axis: int, largest: int) -> None:
    key = x.astype(np.float64)
    places = np.take(np.argsort(-key if largest else key, axis=axis, kind="stable"), range(count), axis)
    np.testing.assert_array_equal(got[1], places)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, places, axis))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.uint16])
@pytest.mark.parametrize(("count", "size"), [WALKED, RANKED, SORTED])
def test_definitions_equal_a_stable_sort(count: int, size: int, dtype: Any, largest: int) -> None:
    x = drawn((2, size, 3), dtype)
    loaded = load_model(top_k(dtype, list(x.shape), count, 1, largest), engine=by_definition)
    check(loaded(x), x, count, 1, largest)
    assert loaded.host_operators == (dtype == np.uint16 or size > LONGEST_RANKED)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("count", "size"), [WALKED, RANKED])
def test_compiled_equals_a_stable_sort(count: int, size: int, largest: int) -> None:
    x = drawn((5, size), np.float32)
    check(load_model(top_k(np.float32, [5, size], count, -1, largest))(x), x, count, -1, largest)


def test_rows_of_any_length() -> None:
    loaded = load_model(top_k(np.float32, [2, "n"], 3, -1, 1))
    for size in (9, 4, 3):
        x = drawn((2, size), np.float32)
        check(loaded(x), x, 3, -1, 1)
    assert len(loaded.program.segments()) == 1
    with pytest.raises(TaskmapError, match="TopK"):
        loaded(drawn((2, 2), np.float32))


@pytest.mark.parametrize(("count", "size"), [WALKED, RANKED, SORTED])
@pytest.mark.parametrize("largest", [0, 1])
def test_nan_counts_as_infinite(count: int, size: int, largest: int) -> None:
    x = drawn((1, size), np.float32)
    x[0, [1, 4, 5]] = np.nan
    finite = np.where(np.isnan(x), np.inf, x)
    values, places = load_model(top_k(np.float32, [1, size], count, -1, largest), engine=by_definition)(x)
    check([np.where(np.isnan(values), np.inf, values), places], finite, count, -1, largest)
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, -1))


@pytest.mark.parametrize("count", [-1, 5])
def test_more_than_there_are_is_refused(count: int) -> None:
    with pytest.raises(TaskmapError, match="TopK"):
        load_model(top_k(np.float32, [4], count, 0, 1), engine=by_definition)(np.ones(4, np.float32))


def test_some_dozens_of_many_are_walked_to() -> None:
    size = MOST_WALKED // 20
    x = np.random.default_rng(0).integers(0, 50, (1, size)).astype(np.float32)
    loaded = load_model(top_k(np.float32, [1, size], 20, 1, 1))
    values, places = loaded(x)
    assert not loaded.host_operators
    expected = np.argsort(-x, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))
