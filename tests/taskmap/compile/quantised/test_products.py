"""Compiled products of bytes on the CPU equal integer arithmetic, whatever instructions compute them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from taskmap.backend.cpu.host import detect_host
from tests.taskmap.compare import compiled

HOST = detect_host().features
UNITS = {
    "avx512_vnni": r'\btm_vpdpbusd_|"vpdpbusd ',
    "avx_vnni": r'\btm_vex_vpdpbusd_|"%\{vex%\} vpdpbusd ',
    "amx_sim": r"\btm_sim_tdpb",
    "avx512_vnni, amx_tile, amx_int8": r"\btm_tdpb",
}
"""A pattern of the text of a product of bytes, as a function or in assembly, by features."""
SETTINGS = [{"features": "none"}]
if "avx512_vnni" in HOST:
    SETTINGS.append({"features": "avx512_vnni"})
if "avx_vnni" in HOST:
    SETTINGS.append({"features": "avx_vnni", "isa": "avx2"})
if "amx_int8" in HOST:
    SETTINGS.append({"features": "avx512_vnni, amx_tile, amx_int8"})
SETTINGS.append({"features": "amx_sim", "isa": "amx-sim"})
settings = pytest.mark.parametrize("options", SETTINGS, ids=lambda options: "-".join(options.values()))

int_mm = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
int8pack_mm = torch._weight_int8pack_mm  # pyright: ignore[reportPrivateImportUsage]


def some_bytes(dtype: torch.dtype, *shape: int) -> Tensor:
    """Bytes of the whole range, the ends of it more often."""
    low = torch.iinfo(dtype).min
    drawn = torch.randint(0, 256, shape)
    drawn[torch.rand(shape) < 0.3] = 0
    drawn[torch.rand(shape) < 0.3] = 255
    return (drawn + low).to(dtype)


def exact(a: Tensor, b: Tensor) -> Tensor:
    """The product in 64-bit integers, wrapped to 32 bits."""
    return (a.long() @ b.long()).int()


class Quantised(nn.Module):
    """A product with a constant of bytes, then an epilogue of floats."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(weight.shape[0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, scale = self.get_buffer("weight"), self.get_buffer("scale")
        total = int_mm(x, weight.t())
        return total, total.float() * scale


@settings
@pytest.mark.parametrize("signed", [torch.int8, torch.uint8])
@pytest.mark.parametrize(("m", "k", "n"), [(70, 129, 80), (1, 256, 50), (20, 1000, 33), (3, 5, 2)])
def test_a_constant_operand(
    m: int, k: int, n: int, signed: torch.dtype, options: dict[str, str], tmp_path: Path
) -> None:
    layer, x = Quantised(some_bytes(torch.int8, n, k)).eval(), some_bytes(signed, m, k)
    with torch.no_grad():
        got, scaled = compiled(layer, options={**options, "dump_dir": str(tmp_path)})(x)
    want = exact(x, layer.get_buffer("weight").t())
    assert got.dtype == torch.int32
    assert torch.equal(got, want)
    torch.testing.assert_close(scaled, want.float() * layer.get_buffer("scale"), rtol=1e-6, atol=0)
    texts = [path.read_text() for path in tmp_path.rglob("*.c")]
    used = {unit for unit in UNITS.values() if any(re.search(unit, text) for text in texts)}
    if n * k >= 4096:
        assert used == ({UNITS[options["features"]]} if options["features"] in UNITS else set())
    else:  # not packed; of the signs that dot products take, copied by the product
        dots = {"avx512_vnni", "avx_vnni"} & set(options["features"].split(", "))
        assert used == {UNITS[name] for name in dots if signed == torch.uint8}
    assert not any("at::" in text for text in texts)


@settings
@pytest.mark.parametrize(("m", "k", "n"), [(100, 65, 90), (64, 64, 64), (2, 70, 60), (9, 1, 7)])
def test_operands_that_are_packed_on_every_call(m: int, k: int, n: int, options: dict[str, str]) -> None:
    a, b = some_bytes(torch.int8, m, k), some_bytes(torch.int8, k, n)
    product = compiled(int_mm, options=options)
    for _ in range(2):
        assert torch.equal(product(a, b), exact(a, b))
        a, b = a.flip(0), b.flip(1)  # other values, same sizes: nothing is remembered


@settings
def test_a_symbolic_number_of_rows(options: dict[str, str]) -> None:
    layer = Quantised(some_bytes(torch.int8, 70, 90)).eval()
    run = compiled(layer, options=options, dynamic=True)
    with torch.no_grad():
        for m in (5, 64, 130):
            x = some_bytes(torch.int8, m, 90)
            assert torch.equal(run(x)[0], exact(x, layer.get_buffer("weight").t()))


@settings
def test_a_product_with_itself(options: dict[str, str]) -> None:
    x = some_bytes(torch.int8, 80, 80)
    got = compiled(lambda a: int_mm(a, a), options=options)(x)
    assert torch.equal(got, exact(x, x))


@settings
@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_operands(m: int, k: int, n: int, options: dict[str, str]) -> None:
    a, b = some_bytes(torch.int8, m, k), some_bytes(torch.int8, k, n)
    assert torch.equal(compiled(int_mm, options=options)(a, b), exact(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 40])
def test_weights_of_bytes(rows: int, dtype: torch.dtype) -> None:
    """``_weight_int8pack_mm``: floats by bytes with a scale per column."""
    x, w, scales = torch.randn(rows, 256).to(dtype), some_bytes(torch.int8, 96, 256), torch.rand(96).to(dtype)
    got = compiled(int8pack_mm)(x, w, scales)
    want = x.double() @ w.double().T * scales.double()
    assert got.dtype == dtype
    error = (got.double() - want).abs().max() / want.abs().max()
    assert error < (1e-6 if dtype == torch.float32 else 2.0**-8)


@settings
@pytest.mark.parametrize("signs", [(torch.uint8, torch.int8), (torch.int8, torch.int8), (torch.uint8, torch.uint8)])
def test_a_batch_whose_second_operands_differ(
    signs: tuple[torch.dtype, torch.dtype], options: dict[str, str], tmp_path: Path
) -> None:
    """No pass packs them: where there are instructions for them, the products copy their groups themselves."""
    a, b = some_bytes(signs[0], 3, 40, 45), some_bytes(signs[1], 3, 45, 50)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a.int(), b.int())

    for right in (b, b.mT.contiguous().mT):
        got = compiled(product, options={**options, "dump_dir": str(tmp_path)})(a, right)
        assert torch.equal(got, exact(a, right))
    texts = [path.read_text() for path in tmp_path.rglob("*.c")]
    used = {unit for unit in UNITS.values() if any(re.search(unit, text) for text in texts)}
    assert used == ({UNITS[options["features"]]} if options["features"] in UNITS else set())
