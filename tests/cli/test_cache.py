"""`taskmap cache`: every action, as text and as JSON, with exit statuses for scripts."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from taskmap.cli import main
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path
from taskmap.tuning.record import Conditions, Operator, Record, Verdict, to_text
from tests.tuning.tuning_here import DEFAULT, OTHERS, here, operator

Capture = pytest.CaptureFixture[str]
OTHER = Operator("cpu.matmul", "1x7x8x9", "f32,f32,f32", "a=k b=n", "cpu:avx512")
ACTIONS = (
    *("list", "show", "best", "tune", "export", "import", "merge", "diff"),
    *("explain-miss", "verify", "prune", "stats", "clear", "path"),
)


def record(config: str, *seconds: float, of: Operator | None = None, under: Conditions | None = None) -> Record:
    verdict = Verdict.OK if seconds else Verdict.CRASHED
    reason = "" if seconds else "signal 11"
    return Record(of or operator(), config, verdict, under or here(), time.time() - 100, seconds, reason)


@pytest.fixture
def cache(cache_dir: Path) -> Path:
    """A cache with a space of three configurations, one of which crashed, and a record that is stale."""
    fill(cache_dir, record(DEFAULT, 2e-5, 2.1e-5), record(OTHERS[0], 1e-5), record(OTHERS[1]))
    foreign = Conditions("another machine", 8, "gcc 1", "0")
    fill(cache_dir, record("tile=6x2v, rows=6, k_blocks=1", 1e-3, of=OTHER, under=foreign))
    return cache_dir


def fill(folder: Path, *records: Record) -> None:
    database = Database(database_path(str(folder)))
    database.add(records)
    database.close()


def run(*arguments: object) -> int:
    return main(["cache", *(str(a) for a in arguments)])


def printed(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_help_with_an_example(action: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(action, "--help")
    text = capsys.readouterr().out
    assert f"example: taskmap cache {action}" in text
    assert "--json" in text


def test_actions_are_listed_and_unknown_ones_refused(capsys: Capture) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(f"  {action} " in text for action in ACTIONS)
    assert run() == 2
    assert run("mend") == 2
    assert "unknown action 'mend'" in capsys.readouterr().err


def test_list(cache: Path, capsys: Capture) -> None:
    assert run("list") == 0
    out = capsys.readouterr().out
    assert "4 records of 2 operators" in out
    assert "\033" not in out
    assert run("list", "--limit", 1) == 0
    assert "4 records of 2 operators, 1 shown" in capsys.readouterr().out
    assert run("list", "--sort", "time", "--json") == 0
    found = printed(capsys)
    assert [f["seconds"] for f in found[:2]] == sorted(f["seconds"] for f in found[:2])
    assert found[-1]["verdict"] == "crashed"
    assert found[-1]["seconds"] is None


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--shapes", operator().shapes], 3),
        (["--shapes", "1x7*"], 1),
        (["--verdict", "crashed"], 1),
        (["--stale"], 1),
        (["--no-stale"], 3),
        (["--name", "matmul"], 4),
        (["--name", "fft"], 0),
        (["--target", "sm_90"], 0),
        (["--limit", "2"], 2),
    ],
)
def test_filters(cache: Path, capsys: Capture, options: list[str], count: int) -> None:
    assert run("list", "--json", *options) == 0
    assert len(printed(capsys)) == count


def test_show_draws_the_distribution(cache: Path, capsys: Capture) -> None:
    assert run("show", "--shapes", operator().shapes) == 0
    out = capsys.readouterr().out
    assert re.search(r"2\.00–\s+1 █+\s+← default", out)
    assert "crashed: " in out
    assert "3 of " in out
    assert run("show", "--shapes", operator().shapes, "--json") == 0
    found = printed(capsys)
    assert found["default"] == DEFAULT
    assert len(found["records"]) == 3


def test_show_wants_one_operator(cache: Path, capsys: Capture) -> None:
    assert run("show") == 2
    assert "the options match 2 operators" in capsys.readouterr().err
    assert run("show", "--name", "fft") == 2


def test_best_is_what_compilations_use(cache: Path, capsys: Capture) -> None:
    assert run("best", "--shapes", operator().shapes, "--json") == 0
    assert printed(capsys)[0]["best"]["config"] == OTHERS[0]
    assert run("best", "--shapes", OTHER.shapes) == 1
    assert "no valid record" in capsys.readouterr().out


def test_records_travel(cache: Path, tmp_path: Path, capsys: Capture) -> None:
    file, elsewhere = tmp_path / "records.jsonl", tmp_path / "elsewhere"
    assert run("export", "-o", file) == 0
    assert len(file.read_text().splitlines()) == 4
    assert run("diff", file, "--cache-dir", elsewhere) == 1
    assert run("import", file, "--cache-dir", elsewhere) == 0
    assert "4 records read, 4 new or newer, 0 lines refused" in capsys.readouterr().out
    assert run("import", file, "--cache-dir", elsewhere, "--json") == 0
    assert printed(capsys)["files"][str(file)]["changed"] == 0
    assert run("diff", file, "--cache-dir", elsewhere) == 0
    capsys.readouterr()
    assert run("merge", cache / "tuning.sqlite", "--cache-dir", tmp_path / "third", "--json") == 0
    assert printed(capsys)["records"] == 4
    assert run("diff", cache / "tuning.sqlite", tmp_path / "third" / "tuning.sqlite", "--json") == 0
    assert printed(capsys) == []


def test_export_to_the_standard_output(cache: Path, capsys: Capture) -> None:
    assert run("export", "--verdict", "crashed") == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "signal 11"


def test_hostile_lines_are_passed_over_and_counted(cache_dir: Path, tmp_path: Path, capsys: Capture) -> None:
    good = to_text(record(DEFAULT, 1.0))
    bad: list[bytes] = [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"{" * 70000,
        good[:-5].encode(),
        good.replace("1.0", "2.0").encode(),
        b"null",
    ]
    file = tmp_path / "records.jsonl"
    file.write_bytes(b"\n".join([*bad, good.encode(), b"", b"x" * 200_000]))
    assert run("import", file) == 1
    out = capsys.readouterr().out
    assert f"1 records read, 1 new or newer, {len(bad) + 1} lines refused" in out
    assert "the cache now holds 1 records" in out
    assert f"{file.name}:1: a line is not a tuning record" in out


def test_what_cannot_be_read_is_refused(cache_dir: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run("merge", tmp_path / "none") == 2
    assert "records cannot be read" in capsys.readouterr().err
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\0" + b"\1" * 4000)
    assert run("merge", broken) == 2
    assert run("diff", broken, broken, broken) == 2
    assert run("export", "-o", tmp_path / "no" / "folder") == 2


def test_names_cannot_command_the_terminal(cache_dir: Path, capsys: Capture) -> None:
    fill(cache_dir, record("\033[2Jgone", 1.0, of=Operator("\033]0;x\a", "1", "f32", "", "cpu:avx512")))
    assert run("list") == 0
    assert "\033" not in capsys.readouterr().out


def test_explain_miss_names_the_part_that_differs(cache: Path, capsys: Capture) -> None:
    sizes = ["--m", 12, "--n", 96, "--k", 32, "--isa", operator().target.partition(":")[2]]
    assert run("explain-miss", *sizes, "--threads", 1) == 0
    assert run("explain-miss", *sizes, "--threads", 2, "--json") == 1
    found = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert found["nearest"][0]["differs"] == [{"part": "threads", "there": "1", "here": "2"}]


def test_verify(cache: Path, capsys: Capture) -> None:
    assert run("verify") == 0
    assert "4 records, 0 of them damaged" in capsys.readouterr().out
    (cache / "tuning.sqlite").write_bytes(b"nonsense" * 600)
    assert run("verify", "--json") == 1
    assert printed(capsys)["repaired"] is not None
    assert run("verify") == 0


def test_verify_measures_again(cache: Path, capsys: Capture) -> None:
    assert run("verify", "--measure", 1, "--json") == 1  # the cache's times are invented
    (measured,) = printed(capsys)["measured"]
    assert measured["now"] > 0
    assert not measured["holds"]


def test_prune(cache: Path, capsys: Capture) -> None:
    assert run("prune") == 2
    assert run("prune", "--max-size", "1M") == 2
    assert run("prune", "--stale", "--dry-run") == 0
    assert "1 records would be removed, 4 left" in capsys.readouterr().out
    assert run("prune", "--older", 1) == 0
    assert run("prune", "--stale") == 0
    assert run("prune", "--max-records", 2) == 0
    capsys.readouterr()
    assert run("stats", "--json") == 0
    assert printed(capsys)["records"] == 2
    assert run("prune", "--older", 0, "--json") == 0
    assert printed(capsys) == {"removed": 2, "would_remove": 2, "left": 0}


def test_stats_and_clear_and_path(cache: Path, capsys: Capture) -> None:
    assert run("stats") == 0
    assert "4 records of 2 operators, 3 valid here" in capsys.readouterr().out
    assert run("clear") == 2
    assert "Add --yes" in capsys.readouterr().err
    assert run("clear", "--yes", "--json") == 0
    assert printed(capsys) == {"removed": 4}
    assert run("path") == 0
    assert capsys.readouterr().out == f"{cache / 'tuning.sqlite'}\n"


def test_an_empty_cache_is_no_error(absent_cache_dir: Path, capsys: Capture) -> None:
    for action in ("list", "stats", "verify"):
        assert run(action) == 0
    assert run("best") == 1
    assert not absent_cache_dir.exists()


def test_tuning_again(cache: Path, capsys: Capture) -> None:
    assert run("tune", "--shapes", operator().shapes, "--seconds", 0.1, "--json") == 0
    (found,) = printed(capsys)
    assert found["best"] in found["times"]
    assert OTHERS[1] in found["failures"] or OTHERS[1] in found["times"]
