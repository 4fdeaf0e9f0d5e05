"""The figures that `taskmap run` prints about its outputs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from taskmap.cli.run.facts import facts_of


def figures(x: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = facts_of({}, {"y": x}, 0.1, [0.1], {}, [])["outputs"]["y"]
    return found


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.bool_])
def test_the_figures_are_those_in_f64(dtype: type[np.generic]) -> None:
    x = (np.random.default_rng(0).normal(size=(3, 1000)) * 10).astype(dtype)
    wide = x.astype(np.float64)
    found = figures(x)
    assert (found["min"], found["max"], found["nan"]) == (wide.min(), wide.max(), 0)
    assert found["mean"] == pytest.approx(wide.mean(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_that_are_not_numbers_are_counted(dtype: type[np.floating[Any]]) -> None:
    x = np.ones(10, dtype)
    x[[2, 5]] = np.nan
    found = figures(x)
    assert found["nan"] == 2
    assert np.isnan([found["min"], found["max"], found["mean"]]).all()


def test_an_output_is_not_copied() -> None:
    x = np.ones((512, 1024), np.float32)
    tracemalloc.start()
    try:
        figures(x)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < x.nbytes // 2
