"""Convolutions of bf16 are products of pairs, or of tiles, where the target has these: as accurate as eager's, of any
geometry."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.taskmap.compare import compiled
from tests.taskmap.compile.bf16.test_bf16_products import SETTINGS as OF_PRODUCTS
from tests.taskmap.compile.bf16.test_bf16_products import UNITS, assert_as_accurate

SETTINGS = [names for names in OF_PRODUCTS if names != "none"]
settings = pytest.mark.parametrize("features", SETTINGS)
in_tiles = pytest.mark.parametrize("features", [names for names in SETTINGS if "amx" in names])
GEOMETRIES = {
    "of 3x3 with whole steps": (nn.Conv2d(32, 40, 3, padding=1), (1, 32, 9, 14)),
    "of 3x3, two images": (nn.Conv2d(64, 33, 3, padding=1), (2, 64, 7, 7)),
    "with a stride": (nn.Conv2d(32, 16, 3, stride=2, padding=1), (1, 32, 11, 9)),
    "of few channels": (nn.Conv2d(3, 16, 7, stride=2, padding=3), (1, 3, 20, 22)),
    "of 1x1": (nn.Conv2d(40, 24, 1), (1, 40, 6, 7)),
    "dilated": (nn.Conv2d(32, 16, 3, dilation=2, padding=2), (1, 32, 10, 12)),
    "of unequal sides": (nn.Conv2d(32, 16, (1, 5), padding=(0, 2)), (1, 32, 6, 13)),
    "of one dimension": (nn.Conv1d(32, 24, 3, padding=1), (2, 32, 50)),
    "of three dimensions": (nn.Conv3d(32, 16, 3, padding=1), (1, 32, 4, 5, 12)),
}


def exact(conv: nn.Module, x: Tensor) -> Tensor:
    """The convolution in float64."""
    wide: Tensor = conv.double()(x.double())
    conv.bfloat16()
    return wide


@settings
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_convolution(name: str, features: str, tmp_path: Path) -> None:
    conv, shape = GEOMETRIES[name]
    conv, x = conv.bfloat16().eval(), torch.randn(shape).bfloat16()
    with torch.no_grad():
        got = compiled(conv, options={"features": features, "dump_dir": str(tmp_path)})(x)
        assert_as_accurate(got, conv(x), exact(conv, x))
    assert any(re.search(UNITS[features] or "", path.read_text()) for path in tmp_path.rglob("*.c"))


@in_tiles
def test_windows_with_whole_steps_are_loaded_and_not_copied(features: str, tmp_path: Path) -> None:
    """Only the last rows, fewer than two tiles, are copied: 8 lines of 16 positions end in the middle of a tile."""
    conv, x = nn.Conv2d(32, 32, 3, padding=1).bfloat16().eval(), torch.randn(1, 32, 8, 14).bfloat16()
    with torch.no_grad():
        compiled(conv, options={"features": features, "dump_dir": str(tmp_path)})(x)
    text = "\n".join(path.read_text() for path in tmp_path.rglob("*convolution_product*.c"))
    assert " theld_" in text
    assert f"theld_{text.split(' theld_')[1].split('[')[0]}[{9 * 32 * 32}]" in text


@settings
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_bad_pixel_stays_in_its_windows(features: str, bad: float) -> None:
    """Not in the next line, whose pixels follow in memory, and not where zeros fill a sum."""
    for channels in (32, 3):
        conv, x = nn.Conv2d(channels, 16, 3, padding=1).bfloat16().eval(), torch.randn(1, channels, 9, 12).bfloat16()
        x[0, 0, 4, 11] = bad
        with torch.no_grad():
            got = compiled(conv, options={"features": features})(x)
        assert torch.equal(got.isfinite(), exact(conv, x).isfinite())


@settings
def test_symbolic_batches_and_images(features: str) -> None:
    conv = nn.Conv2d(32, 16, 3, padding=1).bfloat16().eval()
    run = compiled(conv, dynamic=True, options={"features": features})
    with torch.no_grad():
        for shape in ((2, 32, 8, 9), (3, 32, 5, 12)):
            x = torch.randn(shape).bfloat16()
            assert_as_accurate(run(x), conv(x), exact(conv, x))


@pytest.mark.parametrize("features", ["none", "amx_sim"])
def test_other_convolutions_stay_as_they_are(features: str) -> None:
    """Of groups, transposed, of f32, and with weights that are inputs."""
    x, w = torch.randn(1, 32, 8, 8), torch.randn(16, 32, 3, 3)
    cases: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (nn.Conv2d(32, 32, 3, groups=32).bfloat16().eval(), (x.bfloat16(),)),
        (nn.ConvTranspose2d(32, 16, 3).bfloat16().eval(), (x.bfloat16(),)),
        (nn.Conv2d(32, 16, 3).eval(), (x,)),
        (torch.conv2d, (x.bfloat16(), w.bfloat16())),
    ]
    with torch.no_grad():
        for run, given in cases:
            got = compiled(run, options={"features": features})(*given)
            torch.testing.assert_close(got, run(*given), rtol=2.0**-6, atol=2.0**-5)
