"""Shells complete exactly the parsers' commands and options."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from taskmap.cli import COMMANDS, main
from taskmap.cli.completion import tree

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def completed(script: str, words: list[str], folder: Path) -> list[str]:
    """The completions that bash offers for the last word."""
    asked = f'{script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _taskmap; printf \'%s\\n\' "${{COMPREPLY[@]}}"'
    run = subprocess.run(
        ["bash", "-c", asked, "bash", "taskmap", *words], cwd=folder, capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    return run.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").touch()
    text = script("bash", capsys)
    for words, offered in (
        (["ru"], ["run"]),
        (["run", "--comp"], ["--compare"]),
        (["run", "--compare", ""], ["reference", "onnxruntime"]),
        (["run", "mod"], ["model.onnx"]),
        (["run", "model.onnx", "--save", "mo"], ["model.onnx"]),
        (["cache", "exp"], ["export", "explain-miss"]),
        (["cache", "list", "--sort", "d"], ["date"]),
        (["tune", "mat"], ["matmul"]),
        (["tune", "matmul", "--dty"], ["--dtype"]),
        (["completion", "f"], ["fish"]),
    ):
        assert completed(text, words, tmp_path) == offered, words
    assert {*completed(text, [""], tmp_path)} >= {*COMMANDS}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for name, node in tree().items():
        assert name in text
        for option in node.options:
            fish = f" -l {option[2:]}" if option.startswith("--") else f" -s {option[1:]}"
            assert (fish if shell == "fish" else option) in text
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", "-c", text], check=True)


def test_every_command_can_be_completed() -> None:
    assert {*tree()} == {*COMMANDS}
