"""The examples about GPUs run on a machine without one."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def custom_op() -> dict[str, Any]:
    """The names of the example, whose operator is registered once."""
    return runpy.run_path(str(EXAMPLES / "cuda_custom_op.py"))


def test_a_kernel_as_an_operator(custom_op: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    torch.compiler.reset()
    custom_op["main"]()
    printed = capsys.readouterr().out
    errors = [float(line.split()[-1]) for line in printed.splitlines() if ": error " in line]
    assert len(errors) == 2
    assert max(errors) < 1e-5
    assert "1 extern" in printed
    assert "taskmap_examples.rms_norm.default" in printed


@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (2, 3, 67), (9, 32)])
def test_the_operator_on_other_shapes(custom_op: dict[str, Any], shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    expected = torch.nn.functional.rms_norm(x.double(), shape[-1:], weight.double(), 1e-6)
    torch.testing.assert_close(custom_op["rms_norm"](x, weight).double(), expected, rtol=1e-5, atol=1e-6)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.library.opcheck(custom_op["rms_norm"], (turned, weight), test_utils=("test_schema", "test_faketensor"))


def test_a_simulation_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate_kernel.py", "--gpu", "A100"])
    runpy.run_path(str(EXAMPLES / "simulate_kernel.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("no problems in 6 orders of threads") == 3
    assert printed.count("on A100: at least") == 3


def test_the_readme_shows_what_the_simulation_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate_kernel.py"])
    runpy.run_path(str(EXAMPLES / "simulate_kernel.py"), run_name="__main__")
    _, tile, padded = capsys.readouterr().out.strip().split("\n\n")
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")  # its symbols, too, are what is printed
    assert f"```\n{padded.removeprefix('padded tile').strip()}\n```" in readme
    for figure in ("7384 wavefronts", "at least 336 ns, bound by shared memory"):
        assert figure in tile
    assert "there are 7384 wavefronts, and shared memory bounds the time at 336 ns" in readme


def test_a_model_is_explained_where_only_the_base_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make demo` installs no transformers; its models are there in plain PyTorch."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(sys, "argv", ["explain_model.py", "--table"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(EXAMPLES / "explain_model.py"), run_name="__main__")
    assert "contraction" in capsys.readouterr().out
