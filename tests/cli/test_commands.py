"""The command line as a whole, `taskmap tune` and `taskmap env`."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from taskmap.cli import COMMANDS, main
from taskmap.cli.output import duration, paint, size
from taskmap.cli.plot import distribution

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
SMALL = ["tune", "matmul", "--m", "12", "--n", "96", "--k", "32", "--threads", "1"]


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_help(name: str, capsys: Capture) -> None:
    try:
        status = main([name, "--help"])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 0
    assert "example: taskmap" in capsys.readouterr().out


def test_tune_reports_default_pick_and_best(cache_dir: Path, capsys: Capture) -> None:
    assert main([*SMALL, "--first", "2", "--seconds", "20"]) == 0
    streams = capsys.readouterr()
    assert "cost model (/ best)" in streams.out
    assert "\nbest: tile=" in streams.out
    assert "cpu.matmul 1x12x96x32: " in streams.err
    assert main([*SMALL, "--first", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert found["measured"] == 0
    assert found["best"] in found["times"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--b", "packed"], "does not describe an operator of cpu.matmul"),
        (["--b", "n; rm -rf"], "does not describe an operator of cpu.matmul"),
        (["--m", "99999999999", "--n", "99999999999"], "too large to be tuned"),
    ],
)
def test_tune_refuses_what_it_cannot_tune(cache_dir: Path, capsys: Capture, more: list[str], message: str) -> None:
    assert main([*SMALL, *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [["--m", "0"], ["--m", "x"], ["--dtype", "i32"], ["--seconds", "-1"], ["--target", "tpu"]]
)
def test_tune_refuses_bad_options(more: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*SMALL, *more])
    assert "usage: taskmap tune" in capsys.readouterr().err


def test_env(cache_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "C compiler" in out
    assert f"  TASKMAP_CACHE_DIR  {cache_dir}\n" in out
    assert out.endswith("complete: taskmap can compile for the CPU\n")
    assert "missing: " not in out, "what is optional is not missing"
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("TASKMAP_CC", raising=False)
    monkeypatch.delenv("CC", raising=False)
    assert main(["env", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["C compiler"] is None
    assert "apt install gcc" in found["missing"]["C compiler"]
    assert main(["env"]) == 1
    out = capsys.readouterr().out
    assert "C compiler         missing: " in out
    assert "C++ compiler       not here: " in out
    assert out.endswith("missing for compiling: C compiler\n")


def start(*arguments: str, folder: Path, **how: Any) -> "subprocess.Popen[str]":
    environment = {**os.environ, "TASKMAP_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "taskmap.cli", *arguments], env=environment, text=True, **how)


def test_an_interrupt_is_clean(cache_dir: Path) -> None:
    # A child starts with what its parent ignores, and what runs in the background of a shell ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = start(*SMALL, "--all", folder=cache_dir, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert child.stderr is not None
    child.stderr.readline()
    child.send_signal(signal.SIGINT)
    _, complaints = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in complaints
    assert "taskmap: interrupted" in complaints


def test_a_killed_tuning_leaves_a_sound_cache_and_no_process(cache_dir: Path) -> None:
    child = start(*SMALL, "--all", folder=cache_dir, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stderr is not None
    child.stderr.readline()
    child.kill()
    child.communicate(timeout=60)
    deadline = time.monotonic() + 30
    gone = 0
    while gone < 4 and time.monotonic() < deadline:  # one that was being started when its parent died appears late
        gone = 0 if _children_of(str(cache_dir)) else gone + 1
        time.sleep(0.2)
    assert gone == 4
    assert main(["cache", "verify", "--cache-dir", str(cache_dir)]) == 0


def test_several_processes_tune_one_operator_at_once(cache_dir: Path) -> None:
    how = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [start(*SMALL, "--first", "2", "--json", folder=cache_dir, **how) for _ in range(3)]
    found = [json.loads(child.communicate(timeout=300)[0])[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len({frozenset(f["times"]) for f in found}) == 1
    assert main(["cache", "verify", "--cache-dir", str(cache_dir)]) == 0


def _children_of(mark: str) -> list[str]:
    """Measuring processes whose environment names ``mark``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"taskmap.tuning.child" in (folder / "cmdline").read_bytes()
            if ours and mark.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_a_reader_that_stops_is_no_error(tmp_path: Path) -> None:
    child = start("cache", "list", folder=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    complaints = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=60) == 0
    assert "Traceback" not in complaints


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert paint("x", "red", terminal) == "\033[31mx\033[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert paint("x", "red", terminal) == "x"
    os.close(leader)
    assert paint("x", "red") == "x"


def test_figures() -> None:
    assert [duration(s) for s in (2.5, 2.5e-3, 2.5e-6, 2.5e-9)] == ["2.5 s", "2.5 ms", "2.5 µs", "2.5 ns"]
    assert [size(n) for n in (0, 1023, 2048, 3 << 30)] == ["0 B", "1023 B", "2.0 KiB", "3.0 GiB"]


def test_a_distribution() -> None:
    lines = distribution([1.0, 1.01, 1.3, 5.0], {"default": 1.3}).splitlines()
    assert lines[1].startswith(" 1.00– 1.02    2 ")
    assert next(line for line in lines if "← default" in line).startswith(" 1.20– 1.35    1 ")
    assert sum(int(line[13:17]) for line in lines[1:]) == 4
    assert distribution([], {}) == "nothing measured"


CONV = ["tune", "conv", "--image", "9", "--channels", "4", "--out-channels", "6", "--kernel", "3", "--threads", "1"]
ATTENTION = ["tune", "attention", "--queries", "9", "--depth", "4", "--threads", "1"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([*CONV, "--transposed", "--stride", "2", "--output-padding", "1"], "cpu.convolution 1x4x9*4x6x3"),
        ([*CONV, "--groups", "2", "--w", "plain"], "cpu.convolution 1x4x9*6x2x3"),
        ([*ATTENTION, "--heads", "2", "--key-heads", "1", "--mask", "bool[b1qk]"], "cpu.attention 1x2x1x9x9x4x4"),
    ],
)
def test_tune_names_every_operator(cache_dir: Path, capsys: Capture, arguments: list[str], name: str) -> None:
    assert main([*arguments, "--first", "1", "--seconds", "10"]) == 0
    assert name in capsys.readouterr().out
    shapes = name.split()[1].replace("*", "[*]")
    assert main(["cache", "show", "--name", name.split()[0], "--shapes", shapes]) == 0
    shown = capsys.readouterr().out
    assert "default" in shown
    assert "configurations recorded" in shown
    assert main(["cache", "explain-miss", *arguments[1:]]) == 0
    assert f"no miss: {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*CONV, "--image", "9x9"], "an image of 2 dimensions and a window of 1"),
        ([*CONV, "--groups", "3"], "3 groups do not divide 4 and 6 channels"),
        ([*CONV, "--stride", "1x1"], "--stride has 2 numbers, and the window 1 dimensions"),
        ([*CONV, "--kernel", "1"], "has no template of its own"),
        ([*CONV, "--w", "folded"], "does not describe an operator of cpu.convolution"),
        ([*ATTENTION, "--mask", "i32[b1qk]"], "does not describe an operator of cpu.attention"),
        ([*ATTENTION, "--heads", "3", "--key-heads", "2"], "2 heads of keys do not divide 3 heads of queries"),
    ],
)
def test_tune_refuses_operators_that_are_none(
    cache_dir: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        child = start("cache", "list", folder=tmp_path, stdout=full, stderr=subprocess.PIPE)
    assert child.stderr is not None
    complaints = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=60) == 2
    assert "cannot write the output" in complaints
    assert "Traceback" not in complaints
