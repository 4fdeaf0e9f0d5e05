"""Attention of bf16 multiplies tiles or pairs where the target has them: as accurate as eager's, at every edge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.taskmap.compare import compiled
from tests.taskmap.compile.bf16.test_bf16_products import SETTINGS, UNITS, assert_as_accurate

UNIT = {names: unit for names, unit in UNITS.items() if unit is not None and names in SETTINGS}
settings = pytest.mark.parametrize("features", UNIT)
SIZES = {
    "whole tiles": (1, 2, 2, 64, 64, 64),
    "edges everywhere": (2, 2, 2, 37, 45, 40),
    "an odd depth": (1, 2, 2, 33, 50, 33),
    "shared keys": (1, 4, 2, 40, 40, 32),
    "several blocks of keys": (1, 1, 1, 40, 1100, 32),
    "several blocks of queries": (1, 1, 1, 300, 70, 32),
}


def operands(
    b: int, h: int, kh: int, q: int, k: int, d: int, *, by_rows: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; by_rows: the heads of a token are neighbours in memory."""
    shapes = ((b, h, q, d), (b, kh, k, d), (b, kh, k, d))
    made = [torch.randn(shape).bfloat16() for shape in shapes]
    if by_rows:
        made = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made]
    return made[0], made[1], made[2]


def wide(given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The same in float64."""
    q, k, v = given
    return q.double(), k.double(), v.double()


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """The attention of a model."""
    return scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


@settings
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_an_attention(name: str, causal: bool, features: str, tmp_path: Path) -> None:
    given = operands(*SIZES[name], by_rows=causal)
    run = compiled(attend, options={"features": features, "dump_dir": str(tmp_path)})
    with torch.no_grad():
        want = attend(*wide(given), causal=causal)
        assert_as_accurate(run(*given, causal=causal), attend(*given, causal=causal), want)
    texts = [path.read_text() for path in tmp_path.rglob("*attention*.c")]
    assert any(re.search(UNIT[features], text) for text in texts)


@settings
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.bool])
def test_masks(kind: torch.dtype, features: str) -> None:
    given = operands(1, 2, 2, 50, 50, 32)
    mask = torch.randn(1, 1, 50, 50)
    mask = mask > -0.5 if kind == torch.bool else mask.to(kind)
    mask64 = mask if kind == torch.bool else mask.double()
    with torch.no_grad():
        got = compiled(attend, options={"features": features})(*given, mask)
        assert_as_accurate(got, attend(*given, mask), attend(*wide(given), mask64))


@settings
def test_symbolic_lengths(features: str) -> None:
    run = compiled(attend, dynamic=True, options={"features": features})
    with torch.no_grad():
        for q, k in ((50, 70), (9, 300), (33, 33), (2, 1101)):
            given = operands(1, 2, 2, q, k, 32)
            assert_as_accurate(run(*given), attend(*given), attend(*wide(given)))


@settings
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_bad_values_beside_an_edge_stay_out(features: str, bad: float) -> None:
    """The last key and the last value are read again beyond the end, with weight zero; a bad query spoils its row."""
    q, k, v = operands(1, 2, 2, 37, 45, 40)
    q[0, 0, 36, 0] = bad
    v[0, 1, 44, 3] = bad
    with torch.no_grad():
        got = compiled(attend, options={"features": features})(q, k, v)
    assert not got[0, 0, 36].isfinite().any()
    assert not got[0, 1, :, 3].isfinite().any()
    assert got[0, 0, :36].isfinite().all()
    assert got[0, 1, :, torch.arange(40) != 3].isfinite().all()


def test_few_queries_do_not_fill_a_tile(tmp_path: Path) -> None:
    given = operands(1, 2, 2, 1, 64, 32)
    with torch.no_grad():
        got = compiled(attend, options={"features": "amx_sim", "dump_dir": str(tmp_path)})(*given)
        assert_as_accurate(got, attend(*given), attend(*wide(given)))
    assert not any("tdpbf16ps" in path.read_text() for path in tmp_path.rglob("*.c"))
