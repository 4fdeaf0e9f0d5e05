"""`taskmap tune module:function`: accepted and refused names, and the tuning of their operators."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from taskmap.cli import main
from taskmap.cli.tune.function import call_of
from taskmap.ir.errors import InputError
from taskmap.tuning.database import Database

Capture = pytest.CaptureFixture[str]
MODULE = """
import torch
import taskmap
from taskmap.decompose import CORE, REGISTER, MatMul, Strategy, param
from taskmap.ir.nodes import Dim
from torch import nn

net = nn.Linear(16, 32)
number = 5

def pair():
    return nn.Linear(8, 16), (torch.randn(12, 8),)

def named():
    return nn.Linear(8, 16), (), {"input": torch.randn(12, 8)}

def bare():
    return net

def product(a, b):
    return a @ b

def ready(x):
    return x @ x

ready.example_inputs = (torch.randn(16, 16),)

def later(x):
    return x @ x

later.example_inputs = lambda: torch.randn(16, 16)

def odd():
    return 5

def tall(m: Dim, n: Dim, k: Dim, rows: int = param("rows", (4, 2))) -> Strategy:
    return MatMul(m, n, k).tile(rows, 32).to(CORE).accumulate_in(REGISTER).split(1).done()

kernel = taskmap.kernel(signature="a[m, k], b[k, n]")(tall)

class inner:
    model = net

def nothing(x):
    return x.sort().values
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "tunable_module.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("import torch\nraise ValueError('no')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("tunable_module", None)


@pytest.mark.parametrize(
    ("name", "shapes", "want"),
    [
        ("net", ["4x16"], [(4, 16)]),
        ("inner.model", ["4x16:f16"], [(4, 16)]),
        ("pair", [], [(12, 8)]),
        ("bare", ["4x16"], [(4, 16)]),
        ("product", ["4x8", "8x2"], [(4, 8), (8, 2)]),
        ("ready", [], [(16, 16)]),
        ("later", [], [(16, 16)]),
        ("ready", ["3x3"], [(3, 3)]),
        ("product", ["scalar", "7:i64"], [(), (7,)]),
    ],
)
def test_what_may_be_named(name: str, shapes: list[str], want: list[tuple[int, ...]]) -> None:
    call = call_of(f"tunable_module:{name}", shapes)
    assert callable(call.function)
    assert [tuple(x.shape) for x in call.inputs] == want


def test_a_function_may_give_keywords_and_shapes_have_types() -> None:
    assert call_of("tunable_module:named", []).keywords.keys() == {"input"}
    x, y = call_of("tunable_module:product", ["4x8:bf16", "3:bool"]).inputs
    assert (x.dtype, y.dtype) == (torch.bfloat16, torch.bool)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("no_such_module:f", [], "cannot import 'no_such_module'"),
        ("broken_module:f", [], "ValueError: no"),
        ("tunable_module:missing", [], "tunable_module has no missing"),
        ("tunable_module:", [], "names nothing"),
        ("tunable_module:number", [], "cannot be called"),
        ("tunable_module:odd", [], "returns int, which cannot be tuned"),
        ("tunable_module:net", [], "there are no inputs for tunable_module:net"),
        ("tunable_module:product", [], "it takes a, b"),
        ("tunable_module:pair", ["3x3"], "returns its own inputs"),
        ("tunable_module:net", ["3xq"], "is not a shape"),
        ("tunable_module:net", ["99999999x99999999"], "too large"),
    ],
)
def test_what_is_refused(text: str, shapes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call_of(text, shapes)


def test_its_operators_are_tuned(cache_dir: Path, capsys: Capture) -> None:
    arguments = ["tune", "tunable_module:net", "--shape", "4x16", "--seconds", "20", "--first", "2", "--threads", "1"]
    assert main(arguments) == 0
    assert "cpu.matmul 1x4x32x16" in capsys.readouterr().out
    database = Database(cache_dir / "tuning.sqlite")
    assert {r.operator.name for r in database.records()} == {"cpu.matmul"}
    database.close()
    assert main([*arguments, "--train"]) == 0
    assert main(["tune", "tunable_module:nothing", "--shape", "8", "--seconds", "5"]) == 1
    assert "no operator has configurations" in capsys.readouterr().out


def test_a_kernel_is_tuned(cache_dir: Path, capsys: Capture) -> None:
    arguments = ["tune", "tunable_module:kernel", "--shape", "16x8", "--shape", "8x32", "--seconds", "600"]
    assert main(arguments) == 0
    assert re.fullmatch("best: rows=[42]\n", capsys.readouterr().out)
    assert main(["cache", "list"]) == 0
    assert "kernel.tunable_module.tall" in capsys.readouterr().out


def test_the_command_says_what_is_no_operator(capsys: Capture) -> None:
    assert main(["tune", "convv"]) == 2
    assert "did you mean 'conv'?" in capsys.readouterr().err
    assert main(["tune", "tunable_module:net"]) == 2
    assert "--shape 1x3x224x224" in capsys.readouterr().err
