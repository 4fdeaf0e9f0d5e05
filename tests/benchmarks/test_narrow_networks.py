"""The benchmarks of networks in bf16 and of a decoder's step run, resume, and give wrong results no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.models import relative_error
from benchmarks.narrow import decoder_step, each_case, networks, quantised
from benchmarks.narrow.compared import Entrant, compared
from benchmarks.narrow.decoder import (
    KINDS,
    DecoderStep,
    Nibbles,
    PackedNibbles,
    bytes_read,
    exact_linear,
    replaced,
)
from benchmarks.support.harness import Protocol

QUICK = ["--small", "--rounds", "1", "--window", "0.001", "--patience", "0", "--threads", "1", "--engines", "taskmap"]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # PyTorch's exporter uses it
@pytest.mark.parametrize(("benchmark", "words", "names"), [
    (networks, ["--models", "llama"], ["llama"]),
    (decoder_step, ["--kinds", "bf16", "int4"], ["bf16", "int4"]),
    pytest.param(
        quantised, ["--models", "mobilenet_v2", "--inputs", "2"], ["mobilenet_v2, qdq", "mobilenet_v2, dynamic"],
        marks=pytest.mark.long,
    ),
])  # fmt: skip
def test_they_run_and_resume(
    benchmark: Any, words: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(each_case, "apart", lambda work, seconds: work())  # tests have computed in parallel
    arguments = [*words, *QUICK, "--out", str(tmp_path)]
    assert benchmark.main(arguments) == 0
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert [f["name"] for f in found["data"]] == names
    assert all(f["right"] and f["speed"] > 0 for f in found["data"]), found["data"]
    monkeypatch.setattr(each_case, "apart", lambda work, seconds: pytest.fail("measured again"))
    assert benchmark.main([*arguments, "--resume"]) == 0
    assert json.loads(file.read_text())["rows"] == found["rows"]


def test_an_engine_with_a_larger_error_has_no_time() -> None:
    class Rounding(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1.01 if torch.compiler.is_compiling() else 1.001)

    torch.compiler.reset()
    x = torch.randn(64)
    found = compared([Entrant(name, Rounding(), (x,)) for name in ("eager", "taskmap")], (x.double(),), Protocol(1, 0))
    assert not found["right"]
    assert "wrong result" in found["engines"]["taskmap"]["error"]
    assert set(found["seconds"]) == {"eager"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_near_its_weights_in_float64(kind: str) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        step = DecoderStep(kind, 2, 128, 4, 2, 256).eval()
        args = step.inputs(19)
        got = step(*args)
        wide = replaced(step, exact_linear).double()
        assert relative_error((got,), (wide(*(a.double() for a in args)),)) < 0.05
        assert 0.1 < float(got.float().std()) < 10


def test_packed_weights_of_four_bits_are_the_same() -> None:
    torch.manual_seed(0)
    layer, x = Nibbles(128, 96), torch.randn(1, 1, 128).bfloat16()
    exact = x.double() @ layer.exact().T
    assert relative_error((PackedNibbles(layer)(x),), (exact,)) < 0.01
    assert relative_error((layer(x),), (exact,)) < 0.01


def test_narrower_weights_are_fewer_bytes() -> None:
    sizes = {kind: bytes_read(DecoderStep(kind, 1, 128, 4, 2, 256), ()) for kind in KINDS}
    assert sizes["bf16"] > 1.9 * sizes["int8"] > 2.5 * sizes["int4"]
