"""Compiled products of bf16 on the CPU: as accurate as eager's, whatever instructions compute them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from taskmap.backend.cpu.host import detect_host
from tests.taskmap.compare import compiled

FEATURES = detect_host().features
UNITS = {
    "none": None,
    "avx512_bf16": r'\btm_vdpbf16ps_|"vdpbf16ps ',
    "amx_tile, amx_bf16": r"\btm_tdpbf16ps\(",
    "amx_sim": r"\btm_sim_tdpbf16ps\(",
}
"""The features of a compilation, and a pattern of the instruction that its products use."""
SETTINGS = [names for names in UNITS if names in ("none", "amx_sim") or set(names.split(", ")) <= {*FEATURES}]
settings = pytest.mark.parametrize("features", SETTINGS)


def assert_as_accurate(got: Tensor, eager: Tensor, want: Tensor) -> None:
    """An error of at most 1.5 times eager's, in the mean and at the worst element."""
    assert (got.dtype, got.shape) == (eager.dtype, eager.shape)
    ours, theirs = ((x.double() - want).abs() for x in (got, eager))
    assert ours.mean() <= 1.5 * theirs.mean() + 1e-12
    assert ours.max() <= 1.5 * theirs.max() + 1e-12


@settings
@pytest.mark.parametrize(("m", "k", "n"), [(70, 129, 80), (1, 256, 50)])
def test_a_linear_layer(m: int, k: int, n: int, features: str, tmp_path: Path) -> None:
    layer, x = nn.Linear(k, n, bias=False).bfloat16().eval(), torch.randn(m, k).bfloat16()
    with torch.no_grad():
        got = compiled(layer, options={"features": features, "dump_dir": str(tmp_path)})(x)
        assert_as_accurate(got, layer(x), x.double() @ layer.weight.double().T)
    texts = [path.read_text() for path in tmp_path.rglob("*.c")]
    used = [unit for unit in UNITS.values() if unit is not None and any(re.search(unit, text) for text in texts)]
    assert used == ([UNITS[features]] if UNITS[features] else [])


@settings
def test_operands_that_are_packed_on_every_call(features: str) -> None:
    a, b = torch.randn(100, 65).bfloat16(), torch.randn(65, 90).bfloat16()
    product = compiled(torch.mm, options={"features": features})
    for _ in range(2):
        assert_as_accurate(product(a, b), torch.mm(a, b), a.double() @ b.double())
        a, b = a.flip(0), b * 2  # other values, same sizes: nothing is remembered


@settings
def test_a_fused_operand_is_rounded_as_by_eager(features: str) -> None:
    layer, x = nn.Linear(64, 96, bias=False).bfloat16().eval(), torch.randn(80, 64).bfloat16()

    def model(x: Tensor) -> Tensor:
        y: Tensor = layer(torch.relu(x) * 1.3)
        return y

    with torch.no_grad():
        got, rounded = compiled(model, options={"features": features})(x), torch.relu(x) * 1.3
        assert_as_accurate(got, model(x), rounded.double() @ layer.weight.double().T)


@settings
@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_operands(m: int, k: int, n: int, features: str) -> None:
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    got = compiled(torch.mm, options={"features": features})(a, b)
    torch.testing.assert_close(got, torch.mm(a, b))


def test_the_software_model_is_an_instruction_set(tmp_path: Path) -> None:
    layer, x = nn.Linear(64, 80, bias=False).bfloat16().eval(), torch.randn(40, 64).bfloat16()
    with torch.no_grad():
        got = compiled(layer, options={"isa": "amx-sim", "dump_dir": str(tmp_path)})(x)
        assert_as_accurate(got, layer(x), x.double() @ layer.weight.double().T)
    assert any("tm_sim_tdpbf16ps(" in path.read_text() for path in tmp_path.rglob("*.c"))


@settings
def test_a_batch_of_products(features: str, tmp_path: Path) -> None:
    """The second operand differs for each, so no pass packs it: the products copy its groups themselves."""
    a, b = torch.randn(3, 40, 45).bfloat16(), torch.randn(3, 45, 50).bfloat16()
    for right in (b, b.mT.contiguous().mT):
        got = compiled(torch.bmm, options={"features": features, "dump_dir": str(tmp_path)})(a, right)
        assert_as_accurate(got, torch.bmm(a, right), a.double() @ right.double())
    texts = [path.read_text() for path in tmp_path.rglob("*.c")]
    used = [unit for unit in UNITS.values() if unit is not None and any(re.search(unit, text) for text in texts)]
    assert used == ([UNITS[features]] if UNITS[features] else [])


@settings
@pytest.mark.parametrize("rows", [1, 6, 49])
def test_scores_and_values_of_heads(rows: int, features: str) -> None:
    """Heads are views of one tensor, and values are scaled on their way to the product."""
    q, k, v = (torch.randn(2, n, 3 * 32).bfloat16() for n in (rows, 53, 53))

    def model(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (x.view(*x.shape[:2], 3, 32).transpose(1, 2) for x in (q, k, v * 0.75))
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        return scores, torch.relu(scores) @ v

    scores, values = compiled(model, options={"features": features})(q, k, v)
    with torch.no_grad():
        eager = model(q, k, v)
    exact = model(q.double(), k.double(), v.double())
    assert_as_accurate(scores, eager[0], exact[0])
    assert (values.shape, values.dtype) == (eager[1].shape, eager[1].dtype)
    assert (values.double() - exact[1]).norm() <= 1.5 * (eager[1].double() - exact[1]).norm()


@settings
def test_a_symbolic_number_of_rows(features: str) -> None:
    linear = nn.Linear(70, 90).bfloat16()
    layer = nn.Sequential(linear, nn.GELU()).eval()
    model = compiled(layer, dynamic=True, options={"features": features})
    with torch.no_grad():
        for rows in (33, 64, 100):
            x = torch.randn(rows, 70).bfloat16()
            want = torch.nn.functional.gelu(x.double() @ linear.weight.double().T + linear.bias.double())
            assert_as_accurate(model(x), layer(x), want)
