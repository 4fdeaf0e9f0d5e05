"""Samples by numpy, for sizes that are not compiled, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taskmap.graph.importers.onnx.ops.numpy_vision import grid_sample

MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_samples_equal_those_of_pytorch(mode: str, padding: str, align: bool) -> None:
    rng = np.random.default_rng()
    x, grid = rng.standard_normal((2, 3, 6, 7)), rng.uniform(-1.6, 1.6, (2, 9, 8, 2))
    want = torch.nn.functional.grid_sample(torch.tensor(x), torch.tensor(grid), MODES[mode], padding, align)
    np.testing.assert_allclose(grid_sample(x, grid, mode, padding, align), want.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_no_samples(mode: str) -> None:
    assert grid_sample(np.zeros((1, 3, 4, 4)), np.zeros((1, 0, 5, 2)), mode, "zeros", False).shape == (1, 3, 0, 5)
