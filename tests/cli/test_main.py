"""The command line refuses unknown commands and options."""

import pytest

import taskmap
from taskmap.cli import COMMANDS, main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"taskmap {taskmap.__version__}\n"


@pytest.mark.parametrize("arguments", [["tidy"], ["--no-such-flag", "run"]])
def test_what_does_not_exist_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: taskmap" in capsys.readouterr().err


def test_no_command_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert "usage: taskmap" in shown
    assert "exit status: 0 done; 1 done, and the answer is no; 2 " in shown
    assert all(f"\n    {name} " in shown for name in COMMANDS)
