"""The tuning database on file systems without locks or shared memory, and on full or read-only ones."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskmap.errors import TuningError
from taskmap.tuning import connection as connecting
from taskmap.tuning.connection import Mode, connect, on_network
from taskmap.tuning.database import Database
from taskmap.tuning.lockfile import turn
from tests.tuning.records import record

HERE = Path(__file__)
WRITE = """
import pathlib, sys
from taskmap.tuning.database import Database
from tests.tuning.records import record
database = Database(pathlib.Path(sys.argv[1]))
for i in range(int(sys.argv[3])):
    print(database.add([record(f"{sys.argv[2]}-{i}", 1.0)]), flush=True)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("shim") / "refusing.so"
    source = HERE.with_name("refusing.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", built, source, "-ldl"], check=True)
    return built


def start(shim: Path, refused: str, path: Path, writer: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path), writer, str(count)],
        env={**os.environ, "LD_PRELOAD": str(shim), "REFUSE": refused},
        cwd=HERE.parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("refused", ["locks", "memory"])
@pytest.mark.parametrize("exists", [False, True])
def test_several_processes_where_something_is_refused(tmp_path: Path, shim: Path, refused: str, exists: bool) -> None:
    path = tmp_path / "tuning.sqlite"
    if exists:  # written ahead, on another file system
        database = Database(path)
        database.add([record("before", 1.0)])
        database.close()
    writers = [start(shim, refused, path, str(n), 5) for n in range(3)]
    assert [w.communicate()[0] for w in writers] == ["1\n" * 5] * 3
    assert Database(path).count() == 15 + exists
    assert not path.with_name("tuning.sqlite.turn").exists()


def test_a_process_that_is_killed_in_its_turn(tmp_path: Path, shim: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    killed = start(shim, "locks", path, "killed", 100_000)
    assert killed.stdout is not None
    lines = [killed.stdout.readline() for _ in range(20)]
    killed.send_signal(signal.SIGKILL)
    lines += killed.communicate()[0].splitlines()
    after = start(shim, "locks", path, "after", 3)
    assert after.communicate()[0] == "1\n" * 3
    assert Database(path).count() >= len(lines) + 2  # what it was printing may be cut off


def test_turns_are_taken_over_from_the_dead_alone(tmp_path: Path) -> None:
    path, mark = tmp_path / "x", tmp_path / "x.turn"
    ended = subprocess.Popen(["true"])
    ended.wait()
    mark.write_text(f"{socket.gethostname()} {ended.pid}")
    with turn(path, 1.0):
        assert mark.read_text().endswith(f" {os.getpid()}")
        with pytest.raises(TimeoutError, match="works on it"), turn(path, 0.05):
            pass
    assert not mark.exists()
    mark.write_text("elsewhere 1")
    with pytest.raises(TimeoutError), turn(path, 0.05):
        pass
    os.utime(mark, (time.time() - 1000, time.time() - 1000))
    with turn(path, 1.0):
        pass
    mark.touch()  # its process was killed before it wrote its name
    with pytest.raises(TimeoutError), turn(path, 0.05):
        pass
    os.utime(mark, (time.time() - 10, time.time() - 10))
    with turn(path, 1.0):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "shared"),
    [("nfs4", True), ("fuse.sshfs", True), ("9p", True), ("ext4", False), ("fuse.fuse-overlayfs", False)],
)
def test_network_file_systems_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shared: bool
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /home/a\\040b rw shared:1 - {kind} server:/x rw\n")
    monkeypatch.setattr(connecting, "_MOUNTS", mounts)
    assert on_network(Path("/home/a b/cache")) is shared
    assert on_network(Path("/home/a bc/cache")) is False
    monkeypatch.setattr(connecting, "_MOUNTS", tmp_path / "none")
    assert on_network(Path("/home/a b/cache")) is False


def test_machines_do_not_share_what_is_written_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmap.tuning.database.on_network", lambda path: True)
    database = Database(tmp_path / "tuning.sqlite")
    database.add([record("a", 1.0)])
    assert database.path.read_bytes()[18:20] == b"\1\1"  # the header's word for an ordinary journal
    assert not database.path.with_name("tuning.sqlite-wal").exists()
    database.close()


def test_what_was_written_ahead_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    writer = Database(tmp_path / "tuning.sqlite")
    writer.add([record("a", 1.0)])
    read_only = tmp_path / "copy"
    (read_only / "tuning.sqlite-shm").mkdir(parents=True)  # as where none can be made
    for side in ("", "-wal"):
        shutil.copyfile(tmp_path / f"tuning.sqlite{side}", read_only / f"tuning.sqlite{side}")
    assert (read_only / "tuning.sqlite-wal").stat().st_size
    before = {p: p.read_bytes() for p in read_only.iterdir() if p.is_file()}
    connection = connect(read_only / "tuning.sqlite", Mode.READ)
    assert connection.execute("SELECT count(*) FROM records").fetchone() == (1,)
    connection.close()
    writer.close()
    shutil.copyfile(tmp_path / "tuning.sqlite", read_only / "tuning.sqlite")
    (read_only / "tuning.sqlite-wal").unlink()
    connection = connect(read_only / "tuning.sqlite", Mode.READ)
    assert connection.execute("SELECT count(*) FROM records").fetchone() == (1,)
    connection.close()
    assert (read_only / "tuning.sqlite") in before


def test_a_database_that_cannot_be_written_is_read_and_writing_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(tmp_path / "tuning.sqlite")
    database.add([record("a", 1.0)])
    database.close()
    monkeypatch.setattr("taskmap.tuning.database.can_write", lambda path: False)
    database = Database(database.path)
    assert database.records() == [record("a", 1.0)]
    assert database.verify() is None
    database.close()
    for change in (lambda: database.add([record("b", 1.0)]), database.clear, database.ready):
        with pytest.raises(TuningError, match="cannot be written"):
            change()
    database.close()
