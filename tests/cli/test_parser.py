"""Mistyped names are answered with the nearest valid one, at once, and as JSON with --json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from taskmap.cli import main
from taskmap.cli.completion import tree
from taskmap.cli.run.inputs import InputSpec
from taskmap.cli.shapes import HELP, Shape, dimension_sizes, named_shape, one_size
from taskmap.ir.errors import TaskmapError

ROOT = Path(__file__).parents[2]


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The output of a command that is refused: standard output and standard error."""
    try:
        status = main(words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    printed = capsys.readouterr()
    return printed.out, printed.err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["rnu", "model.onnx"], "'run'"),
        (["tune", "matmull"], "'matmul'"),
        (["cache", "lst"], "'list'"),
        (["run", "model.onnx", "--repeats", "3"], "'--repeat'"),
        (["run", "model.onnx", "--compare", "onnxruntim"], "'onnxruntime'"),
        (["cache", "list", "--sort", "oprator"], "'operator'"),
        (["completion", "fihs"], "'fish'"),
    ],
)
def test_a_refusal_ends_with_the_nearest_name(words: list[str], near: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = refusal(words, capsys)
    assert out == ""
    assert err.splitlines()[-1].endswith(f"did you mean {near}?")
    out, err = refusal([*words, "--json"], capsys)
    assert err == ""
    error = json.loads(out)["error"]
    assert error["kind"] == "UsageError"
    assert error["hint"] == f"did you mean {near}?"


def test_nothing_is_guessed_for_what_is_like_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in refusal(["run", "model.onnx", "--zzzzzzzz"], capsys)[1]
    assert "actions are list, show" in refusal(["cache", "zzzzzzzz"], capsys)[1]


def test_errors_of_ours_are_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    out, err = refusal(["run", str(tmp_path / "model.onnx"), "--json"], capsys)
    error = json.loads(out)["error"]
    assert error["kind"] == "ImportGraphError"
    assert set(error) == {"kind", "what", "where", "why", "hint"}
    assert err == ""


@pytest.mark.parametrize("command", [["run"], ["explain"], ["compile"], ["tune"]])
def test_a_missing_file_is_said_before_anything_is_loaded(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    program = (
        "import sys; from taskmap.cli import main; status = main(sys.argv[1:])\n"
        "assert not {'torch', 'onnx'} & set(sys.modules); sys.exit(status)"
    )
    words = [sys.executable, "-c", program, *command, str(tmp_path / "modle.onnx")]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert "cannot read the model" in run.stderr
    assert "No such file or directory." in run.stderr
    assert f"Did you mean {str(tmp_path / 'model.onnx')!r}?" in run.stderr


def test_python_runs_the_package() -> None:
    words = [sys.executable, "-m", "taskmap", "--version"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("taskmap ")


PORTS = [InputSpec("x", None, ("batch", 3, "height", None)), InputSpec("ids", None, ("batch", 8))]


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (["batch=8"], {"batch": (8,)}),
        (["batch=1,8", "batch=4"], {"batch": (1, 8, 4)}),
        (["x.3=7"], {"x.3": (7,)}),
        (["2x3x5x7"], {"batch": (2,), "height": (5,), "x.3": (7,)}),
        (["x=2x3x5x7"], {"batch": (2,), "height": (5,), "x.3": (7,)}),
        (["2x3x5x7", "2x8"], {"batch": (2,), "height": (5,), "x.3": (7,)}),
        (["ids=4x8", "height=9"], {"batch": (4,), "height": (9,)}),
    ],
)
def test_a_shape_says_sizes_of_dimensions(texts: list[str], sizes: dict[str, tuple[int, ...]]) -> None:
    assert dimension_sizes([named_shape(text) for text in texts], PORTS) == sizes


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["width=8"], "the model has no dimension 'width'"),
        (["y=1x2"], "the model has no input 'y'"),
        (["x=2x4x5x7"], "it takes \\[batch, 3, height, \\?\\]"),
        (["2x3"], "is not a shape of the input 'x'"),
        (["2x3x5x7", "2x8", "3"], "belongs to no input"),
        (["2x3x5x7", "4x8"], "has several sizes: 2, 4"),
        (["batch=1,8"], "has several sizes: 1, 8"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(TaskmapError, match=said):
        one_size(dimension_sizes([named_shape(text) for text in texts], PORTS))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("8x128:i64", Shape("8x128:i64", "", (8, 128), "i64", extents=True)),
        ("scalar", Shape("scalar", "", (), "", extents=True)),
        ("a=b=3", Shape("a=b=3", "a=b", (3,))),
    ],
)
def test_how_a_shape_is_written(text: str, shape: Shape) -> None:
    assert named_shape(text) == shape


@pytest.mark.parametrize("text", ["", "=8", "batch", "batch=", "batch=x", "1x", "batch=-1"])
def test_what_is_no_shape_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is neither the size of a dimension" in refusal(["run", "model.onnx", f"--shape={text}"], capsys)[1]


def test_options_mean_the_same_everywhere() -> None:
    """Every compiling command has --shape, --isa and --cache-dir, with the same help."""
    commands = tree()
    models = {name: commands[name].options for name in ("run", "compile", "explain", "tune")}
    operators = {name: node.options for name, node in commands["tune"].words.items()}
    actions = {name: node.options for name, node in commands["cache"].words.items()}
    everywhere = [*models.values(), *operators.values(), *actions.values(), commands["env"].options]
    assert len({options["--cache-dir"] for options in everywhere}) == 1
    assert len({options["--isa"] for options in (*models.values(), *operators.values())}) == 1
    assert {options["--shape"].help.startswith(HELP) for options in models.values()} == {True}
    assert {options["--shape"].takes for options in models.values()} == {True}
