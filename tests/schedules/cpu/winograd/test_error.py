"""The rounding error of minimal filtering stays within 4 times that of eager's f32, both against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from taskmap.ir.winograd import FORMS
from tests.schedules.cpu.winograd.test_winograd import filtered, transformed
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.running import run_task, target

BOUND = 4.0


def errors(channels: int, outputs: int, positive: bool) -> tuple[float, float]:
    """The relative error norms of the template and of eager."""
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((1, channels, 14, 14)).astype(np.float32)
    x = np.maximum(x, 0) if positive else x
    w = (rng.standard_normal((32, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
    form, width = FORMS[outputs], 2 * target().lanes(4)
    image = tensor(*x.shape)
    y = filtered(image, 32, form, width)
    (got,) = run_task(fused([y], y, {n: channels_last(*n.shape) for n in (image, y)}), [x, transformed(w, form, width)])
    given, taps = torch.from_numpy(x), torch.from_numpy(w)
    want = conv2d(given.double(), taps.double(), padding=1).numpy()
    eager = conv2d(given, taps, padding=1).numpy()
    norm = np.linalg.norm(want)
    return float(np.linalg.norm(got - want) / norm), float(np.linalg.norm(eager - want) / norm)


@pytest.mark.parametrize("outputs", FORMS)
@pytest.mark.parametrize("channels", [16, 64, 128, 256, 512])
@pytest.mark.parametrize("positive", [False, True], ids=["normal", "after relu"])
def test_error(channels: int, outputs: int, positive: bool) -> None:
    ours, eager = errors(channels, outputs, positive)
    assert ours <= BOUND * eager
