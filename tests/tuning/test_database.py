"""The tuning database: added records are found, by many processes at once, and no readable record is lost."""

import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.errors import TuningError
from taskmap.tuning.database import Database
from taskmap.tuning.record import DAY, Record
from tests.tuning.records import HERE, MATMUL, record, records


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.sqlite")


def test_an_empty_database_makes_no_file(database: Database) -> None:
    assert database.records() == []
    assert database.best(MATMUL, HERE) is None
    assert database.count() == 0
    assert database.remove([record("a", 1.0)]) == 0
    assert not database.path.exists()


@settings(deadline=None, max_examples=40)
@given(st.lists(records, max_size=8))
def test_what_is_added_is_found_again(tmp_path_factory: pytest.TempPathFactory, some: list[Record]) -> None:
    database = Database(tmp_path_factory.mktemp("db") / "tuning.sqlite")
    database.add(some)
    latest = {(r.operator, r.config): r for r in sorted(some, key=lambda r: (r.measured_at, len(r.seconds)))}
    found = {(r.operator, r.config): r for r in database.records()}
    assert found.keys() == latest.keys()
    assert all(found[key].measured_at == latest[key].measured_at for key in found)
    database.close()


@settings(deadline=None, max_examples=20)
@given(
    st.permutations(
        [record("a", 1.0, at=5.0), record("a", 2.0, at=5.0), record("a", 1.0, 2.0, at=5.0), record("a", at=4.0)]
    )
)
def test_the_order_of_adding_does_not_matter(tmp_path_factory: pytest.TempPathFactory, some: list[Record]) -> None:
    database = Database(tmp_path_factory.mktemp("db") / "tuning.sqlite")
    for r in some:
        database.add([r])
    assert database.records() == [record("a", 1.0, 2.0, at=5.0)]
    database.close()


def test_the_best_is_the_fastest_that_counts_here(database: Database) -> None:
    elsewhere = replace(record("d", 0.1), conditions=replace(HERE, threads=64))
    database.add([record("a", 3.0), record("b", 2.0), record("c"), elsewhere])
    assert database.best(MATMUL, HERE) == record("b", 2.0)
    assert database.best(replace(MATMUL, shapes="other"), HERE) is None


def test_a_record_from_the_future_replaces_nothing_and_is_replaced(database: Database) -> None:
    future = record("a", 1.0, at=time.time() + 30 * DAY)
    assert database.add([future]) == 1
    assert database.best(MATMUL, HERE) is None
    assert database.add([record("a", 2.0)]) == 1
    assert database.add([future]) == 0
    assert database.best(MATMUL, HERE) == record("a", 2.0)


def test_a_clock_that_was_wrong_and_is_right_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records made while the clock was years ahead must not block records made now."""
    ahead = time.time() + 700 * DAY
    with monkeypatch.context() as patched:
        patched.setattr("taskmap.tuning.database.time.time", lambda: ahead)
        assert database.add([record("a", 1.0, at=ahead)]) == 1
        assert database.best(MATMUL, HERE) is not None
    assert database.best(MATMUL, HERE) is None
    assert database.add([record("a", 2.0, at=time.time())]) == 1
    assert database.best(MATMUL, HERE) is not None
    assert database.add([record("a", 1.0, at=ahead)]) == 0


def test_clearing_forgets_what_makes_no_sense_too(database: Database) -> None:
    database.add([record("a", 1.0), record("b", 2.0)])
    with sqlite3.connect(database.path) as connection:
        connection.execute("UPDATE records SET line = 'nonsense' WHERE config = 'a'")
    assert database.clear() == 2
    assert database.count() == 0


def test_the_best_is_one_that_can_be_used(database: Database) -> None:
    database.add([record("a", 1.0), record("b", 2.0)])
    assert database.best(MATMUL, HERE, lambda r: r.config != "a") == record("b", 2.0)


def test_removal(database: Database) -> None:
    database.add([record("a", 1.0), record("b", 2.0)])
    assert database.remove([record("a", 1.0), record("z", 1.0)]) == 1
    assert [r.config for r in database.records()] == ["b"]


def add_many(path: Path, writer: int) -> int:
    database = Database(path)
    return sum(database.add([record(f"{writer}-{i}", 1.0 + i)]) for i in range(25))


def test_eight_processes_at_once(database: Database) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(8, mp_context=context) as pool:
        added = list(pool.map(add_many, [database.path] * 8, range(8)))
    assert added == [25] * 8
    assert database.count() == 200


def test_threads_share_one_database(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: database.add([record(str(i), 1.0)]), range(64)))
    assert database.count() == 64


def test_a_fork_opens_a_connection_of_its_own(database: Database) -> None:
    database.add([record("a", 1.0)])
    child = os.fork()
    if child == 0:
        os._exit(database.add([record("b", 2.0)]) - 1)
    assert os.waitpid(child, 0)[1] == 0
    assert database.count() == 2


def test_killed_while_adding(database: Database) -> None:
    code = (
        "import sys, pathlib; from taskmap.tuning.database import Database; from tests.tuning.records import record\n"
        f"d = Database(pathlib.Path({str(database.path)!r}))\n"
        "for i in range(10**6):\n    d.add([record(str(i), 1.0)]); print(i, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(40)]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    lines += writer.stdout.readlines()
    writer.stdout.close()
    done = int([line for line in lines if line.endswith(b"\n")][-1])
    assert database.count() >= done + 1
    assert database.add([record("after", 1.0)]) == 1


def torn(path: Path, where: float) -> None:
    """Overwrite a part of the file."""
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * where))
        file.write(b"\xff" * 3000)


@pytest.mark.parametrize("where", [0.3, 0.5, 0.7, 0.9])
def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_kept(database: Database, where: float) -> None:
    written = [record(f"config {i:04} {'x' * 200}", 1.0) for i in range(400)]
    database.add(written)
    database.close()
    torn(database.path, where)
    kept = database.records()  # reading all of it meets the damage
    aside = [p for p in database.path.parent.iterdir() if ".damaged-" in p.name and p.name[-4:] not in ("-wal", "-shm")]
    assert len(aside) == 1
    assert len(kept) > 200
    assert set(kept) <= set(written)
    assert database.records() == kept
    assert database.add([record("new", 1.0)]) == 1


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to look", b"\x00" * 5000])
def test_a_file_that_is_no_database_is_set_aside(database: Database, content: bytes) -> None:
    database.path.write_bytes(content)
    assert database.add([record("a", 1.0)]) == 1
    assert database.records() == [record("a", 1.0)]
    (aside,) = [p for p in database.path.parent.iterdir() if ".damaged-" in p.name]
    assert aside.read_bytes() == content


def test_a_row_that_makes_no_sense_is_passed_over(database: Database) -> None:
    database.add([record("a", 1.0), record("b", 2.0)])
    with sqlite3.connect(database.path) as connection:
        connection.execute("UPDATE records SET line = 'nonsense' WHERE config = 'a'")
    assert database.records() == [record("b", 2.0)]
    assert database.best(MATMUL, HERE) == record("b", 2.0)


def test_a_newer_format_is_refused(database: Database) -> None:
    database.add([record("a", 1.0)])
    database.close()
    with sqlite3.connect(database.path) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(TuningError, match="newer taskmap"):
        Database(database.path).records()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TuningError, match="cannot be used"):
        Database(tmp_path / "file" / "tuning.sqlite").add([record("a", 1.0)])


def test_a_full_disk_loses_nothing(database: Database) -> None:
    database.add([record("a", 1.0)])
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            database.add([record(f"{i}{'x' * 500}", 1.0) for i in range(400)])
        except TuningError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert database.records() == [record("a", 1.0)]
    assert database.add([record("b", 1.0)]) == 1
