"""`make gpu` runs its parts as processes: those that crash, hang and lose the GPU cost one case each."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.ladder import rungs
from benchmarks.gpu.parts import (
    LADDER_SECONDS,
    ROOT,
    RUNG_SECONDS,
    RUNGS,
    SHORT_RUNG_SECONDS,
    Part,
    ladder,
    parts,
    rung_seconds,
)  # fmt: skip
from benchmarks.gpu.processes.running import Limits, run
from benchmarks.gpu.record import LOST, WRONG
from benchmarks.gpu.sections import SECTIONS

PART = """
import ctypes, os, signal, sys, time
from pathlib import Path
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.record import LOST, measure_each
arguments = part_options("", 60.0, "case").parse_args()
record = record_of(arguments, "gpu_part", lambda: {"code": "1"})
class Dead(RuntimeError): pass
def right(): return {"right": True}
def wrong(): return {"right": False, "relative_error": 0.5}
def raises(): raise RuntimeError("no such kernel")
def crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def aborts(): os.abort()
def exits(): os._exit(1)
def hangs(): ctypes.PyDLL(None).pause()  # holds the interpreter's lock
def lost(): raise Dead("an illegal access")
names = %r
cases = [(f"{n} {name}", globals()[name]) for n, name in enumerate(names)]
dead = lambda: isinstance(sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1], Dead)
if not measure_each(record, cases, lambda: False, dead, lambda row: None):
    sys.exit(LOST)
sys.exit(record.status)
"""


def part(*cases: str, most: float = 1e9) -> Part:
    """A part with the given cases."""
    return Part("part", (sys.executable, "-c", PART % (cases,)), 1.0, "gpu_part", most=most)


def results(out: Path) -> dict[str, str]:
    """The result of each case of the part: right, wrong, or the reason of its failure."""
    rows = json.loads((out / "gpu_part.json").read_text())["rows"]
    return {row["name"]: "right" if row["right"] else row.get("failed", "wrong") for row in rows}


def test_what_ends_a_process_costs_one_case(tmp_path: Path) -> None:
    cases = ("right", "crashes", "right", "wrong", "hangs", "raises", "lost", "aborts", "exits", "right")
    outcome = run(part(*cases), 60, Limits(tmp_path, str(tmp_path), case_seconds=0.5))
    assert (outcome.status, outcome.starts) == ("failed", 6)
    found = results(tmp_path)
    assert [name.split()[1] for name in found] == list(cases)
    assert found["1 crashes"] == "the process was ended by SIGSEGV"
    assert found["3 wrong"] == "wrong"
    assert found["4 hangs"].startswith("no result in time: the stacks are in gpu_part.hang")
    assert "in hangs" in (tmp_path / found["4 hangs"].split()[-1]).read_text()
    assert found["5 raises"] == "RuntimeError: no such kernel"
    assert found["6 lost"] == "the GPU context is lost: Dead: an illegal access"
    assert found["7 aborts"] == "the process was ended by SIGABRT"
    assert found["8 exits"] == "the process ended with status 1"
    assert [found[f"{n} right"] for n in (0, 2, 9)] == ["right"] * 3
    assert len(outcome.ends) == 4  # the others have said themselves what became of them


def test_a_run_is_gone_on_with(tmp_path: Path) -> None:
    limits = Limits(tmp_path, str(tmp_path), case_seconds=0.5)
    assert run(part("right", "crashes"), 60, limits).status == "failed"
    again = run(part("right", "crashes", "right"), 60, Limits(tmp_path, str(tmp_path), resume=True))
    assert (again.status, again.starts) == ("failed", 1)  # the crash is not tried again
    assert list(results(tmp_path).values()) == ["right", "the process was ended by SIGSEGV", "right"]
    assert run(part("right"), 60, limits).status == "passed"
    assert list(results(tmp_path)) == ["0 right"]


def test_cases_are_chosen_by_their_names(tmp_path: Path) -> None:
    run(part("right", "crashes", "wrong"), 60, Limits(tmp_path, str(tmp_path), only=("0*", "*wrong")))
    assert results(tmp_path) == {"0 right": "right", "2 wrong": "wrong"}


def test_a_part_has_no_more_time_than_its_own(tmp_path: Path) -> None:
    """The case in progress does not count as failed: the time was too short, and --resume begins it again."""
    outcome = run(part("right", "hangs", "right"), 4, Limits(tmp_path, str(tmp_path)))
    assert outcome.status == "out of time"
    assert results(tmp_path) == {"0 right": "right"}
    assert json.loads((tmp_path / "gpu_part.json").read_text())["skipped"] == ["1 hangs"]


def test_a_rung_that_takes_too_long_hangs(tmp_path: Path) -> None:
    assert run(part("hangs", most=3), 60, Limits(tmp_path, str(tmp_path))).status == "failed"
    assert results(tmp_path) == {"0 hangs": "no result after 3 s"}


@pytest.mark.parametrize("hanging", [set[int](), {0}, {0, 1, 2, 3}, {4, 5, 6, 7, 8}, set(range(9))])
def test_the_ladder_ends_in_time_and_no_rung_takes_time_from_a_later_one(hanging: set[int]) -> None:
    left = LADDER_SECONDS
    for number in range(len(RUNGS)):
        limit = rung_seconds(left, len(RUNGS) - 1 - number)
        assert SHORT_RUNG_SECONDS <= limit <= RUNG_SECONDS
        left -= limit if number in hanging else SHORT_RUNG_SECONDS
    assert left >= 0
    assert rung_seconds(LADDER_SECONDS, len(RUNGS) - 1) == RUNG_SECONDS


def test_a_part_that_gets_to_no_case_is_given_up(tmp_path: Path) -> None:
    broken = Part("broken", (sys.executable, "-c", "raise SystemExit('no such module')"), 1.0, "gpu_broken")
    outcome = run(broken, 60, Limits(tmp_path, str(tmp_path)))
    assert (outcome.status, outcome.starts) == ("failed", 2)
    assert outcome.ends == ("at no case: the process ended with status 1",) * 2


def main(monkeypatch: pytest.MonkeyPatch, out: Path, rungs: list[Part], others: list[Part], *arguments: str) -> int:
    """The command, with other parts."""
    monkeypatch.setattr(command, "ladder", lambda: rungs)
    monkeypatch.setattr(command, "parts", lambda: others)
    monkeypatch.setattr(command, "gpu_missing", lambda: "")
    return command.main(["--out", str(out), "--store", str(out / "store"), *arguments])


def test_the_results_are_one_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, tmp_path, [], [part("right", "crashes")]) == 1
    with tarfile.open(tmp_path / command.ARCHIVE) as archive:
        assert {"gpu.json", "gpu_part.json"} <= set(archive.getnames())
    assert "part/1 crashes: the process was ended by SIGSEGV" in capsys.readouterr().out
    (outcome,) = json.loads((tmp_path / "gpu.json").read_text())
    assert (outcome["status"], outcome["starts"]) == ("failed", 2)


def test_what_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = Part("absent", ("nothing",), 1.0, "gpu_absent", needs=("json", "no_such_module"))
    assert absent.lacks == ["no_such_module"]
    assert main(monkeypatch, tmp_path, [], [absent]) == 0
    assert json.loads((tmp_path / "gpu.json").read_text())[0]["status"] == "skipped"


def chosen(*only: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(part.name, cases) for part, cases in command.wanted([*ladder(), *parts()], list(only))]


def test_parts_and_cases_are_chosen() -> None:
    assert chosen("matmul", "decode/*GQA*") == [("matmul", ()), ("decode", ("*GQA*",))]
    assert chosen("ladder/TMA*") == [("ladder: TMA copy", ())]
    assert [name for name, _ in chosen("ladder")] == [f"ladder: {rung}" for rung in RUNGS]
    assert len(chosen()) == len(RUNGS) + len(parts())
    with pytest.raises(SystemExit):
        command.main(["--only", "matmull"])


def test_the_parts_are_what_they_are_called() -> None:
    assert [rung.name for rung in rungs()] == list(RUNGS)
    assert sum(part.most for part in ladder()) <= 200  # each far less: two minutes together
    every = parts()
    assert sum(part.share for part in every) == pytest.approx(1)
    names = [part.name for part in every]
    figures = [*SECTIONS, "networks"]
    assert {*figures, "corners", "instructions", "runtime", "kernels"} == set(names)
    assert names[: len(figures)] == sorted(figures, key=names.index)  # figures first
    assert [part.name for part in every if part.needs] == ["kernels"]
    for each in (*every, *ladder()):
        module = each.command[2].replace(".", "/")
        assert (ROOT / f"{module}.py").exists()


def test_statuses_differ() -> None:
    statuses: list[Any] = [0, 1, 2, WRONG, LOST]
    assert len(set(statuses)) == 5
