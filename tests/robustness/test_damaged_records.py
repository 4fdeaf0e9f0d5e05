"""A damaged tuning database: what is readable is read, the rest is set aside, whatever byte is wrong and whenever the
process that repairs it dies."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from taskmap.errors import TuningError
from taskmap.tuning import repair as repairing
from taskmap.tuning.connection import SIDES
from taskmap.tuning.database import Database
from taskmap.tuning.record import HEAD, Record
from tests.tuning.records import record

RECORDS = [record(f"config {i:03} {'x' * 200}", 1.0 + i) for i in range(120)]


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    database = Database(tmp_path / "sound" / "tuning.sqlite")
    database.add(RECORDS)
    database.close()
    return database.path.read_bytes()


def with_content(folder: Path, content: bytes) -> Database:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    (folder / "tuning.sqlite").write_bytes(content)
    return Database(folder / "tuning.sqlite")


def aside(database: Database) -> list[Path]:
    found = database.path.parent.glob("tuning.sqlite.damaged-*")
    return [p for p in found if not p.name.endswith(SIDES)]


def read(database: Database) -> set[Record]:
    found = set(database.records())
    assert found <= set(RECORDS)
    assert database.add([record("new", 1.0)]) == 1
    assert set(database.records()) == found | {record("new", 1.0)}
    database.close()
    return found


@pytest.mark.parametrize("size", [16, 100, 4096])
def test_nothing_is_lost_with_the_header(tmp_path: Path, content: bytes, size: int) -> None:
    database = with_content(tmp_path / "cache", bytes(size) + content[size:])
    assert read(database) == set(RECORDS)
    (kept,) = aside(database)
    assert kept.read_bytes() == bytes(size) + content[size:]


def test_any_bit_of_the_header(tmp_path: Path, content: bytes) -> None:
    for place in range(100):
        if 60 <= place < 64:  # the version of the format: another one may be refused
            continue
        bad = bytearray(content)
        bad[place] ^= 1 << (place * 5) % 8
        assert read(with_content(tmp_path / "cache", bytes(bad))) == set(RECORDS), place


@pytest.mark.parametrize("place", [60, 61, 62])
def test_a_format_that_there_will_never_be_is_damage(tmp_path: Path, content: bytes, place: int) -> None:
    bad = bytearray(content)
    bad[place] = 0x81
    assert read(with_content(tmp_path / "cache", bytes(bad))) == set(RECORDS)


def test_a_bit_anywhere_costs_one_record_at_most(tmp_path: Path, content: bytes) -> None:
    for place in range(100, len(content), len(content) // 60):
        bad = bytearray(content)
        bad[place] ^= 0x80  # texts are no longer UTF-8
        assert len(read(with_content(tmp_path / "cache", bytes(bad)))) >= len(RECORDS) - 1, place


def test_the_name_of_the_table(tmp_path: Path, content: bytes) -> None:
    assert content.count(b"CREATE TABLE records") == 1
    bad = content.replace(b"CREATE TABLE records", b"CREATE TABLE recorda")
    assert read(with_content(tmp_path / "cache", bad)) == set(RECORDS)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_what_is_left_of_a_truncated_file_is_read(tmp_path: Path, content: bytes, share: float) -> None:
    left = content[: int(len(content) * share)]
    whole = sum(HEAD.encode() in piece for piece in left.split(b'"verdict": "ok"}')[:-1])
    assert len(read(with_content(tmp_path / "cache", left))) >= whole


def test_rows_that_make_no_sense_go_when_it_is_verified(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    database = with_content(tmp_path / "cache", content.replace(b"config 007", b"config 00\xff"))
    assert database.check().damaged == 1
    with caplog.at_level(logging.WARNING):
        kept = database.verify()
    assert kept is not None
    assert kept in aside(database)
    assert str(kept) in caplog.text
    assert database.check() == type(database.check())(len(RECORDS) - 1, 0)
    assert database.verify() is None


def test_what_is_locked_is_not_taken_for_damaged(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskmap.tuning.connection._WAIT_SECONDS", 0.1)
    database = with_content(tmp_path / "cache", content)
    other = sqlite3.connect(database.path)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    for attempt in (database.verify, database.records):
        with pytest.raises(TuningError, match="locked"):
            attempt()
    other.close()
    assert aside(database) == []
    assert set(database.records()) == set(RECORDS)


@pytest.mark.parametrize("step", range(1, 6))
def test_a_repair_that_is_killed_is_finished_later(tmp_path: Path, content: bytes, step: int) -> None:
    database = with_content(tmp_path / "cache", bytes(100) + content[100:])
    code = f"""
import os, pathlib, signal
from taskmap.tuning.database import Database
left = {step}
def dying(do):
    def done(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return do(*arguments, **options)
    return done
os.replace, os.link = dying(os.replace), dying(os.link)
Database(pathlib.Path({str(database.path)!r})).records()
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True)
    assert ended.returncode in (-signal.SIGKILL, 0)
    assert read(database) == set(RECORDS)
    left = {p.name for p in database.path.parent.iterdir()}
    assert not [name for name in left if ".making-" in name or name.endswith(".rebuilt")]


def test_what_was_written_ahead_survives_a_killed_repair(tmp_path: Path, content: bytes) -> None:
    """The new file was complete, and the journal of the old one set aside: the records are in the new one alone."""
    database = with_content(tmp_path / "cache", content)
    late = record("late", 5.0)
    other = Database(repairing.rebuilt(database.path))
    other.add([late])
    other.close()
    assert set(database.records()) == {*RECORDS, late}
    assert not repairing.rebuilt(database.path).exists()


def test_a_file_that_was_removed_or_replaced_is_opened_anew(tmp_path: Path, content: bytes) -> None:
    database = with_content(tmp_path / "cache", content)
    assert database.count() == len(RECORDS)
    for path in database.path.parent.iterdir():
        path.unlink()
    assert database.count() == 0
    assert database.add([record("a", 1.0)]) == 1
    assert Database(database.path).count() == 1
    os.replace(tmp_path / "sound" / "tuning.sqlite", database.path)
    for side in SIDES:
        database.path.with_name(f"tuning.sqlite{side}").unlink(missing_ok=True)
    assert database.count() == len(RECORDS)
