"""The kernel store's size limit: the least recently used objects go, objects in use stay, and processes may run at
once."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskmap.backend.store import limit as store_limit
from taskmap.backend.store.inventory import stored_objects, task_files
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.limit import DEFAULT, SizeLimit, enforce, size_limit
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.compile.task_store import TaskKernel, TaskStore
from taskmap.ir.errors import InvalidOptionError
from taskmap.schedules import Choice

ROOT = Path(__file__).parents[3]
LIMIT = {"TASKMAP_CACHE_SIZE": "5000"}
HOUR = 3600.0


def fill(root: Path, count: int = 10) -> KernelStore:
    """``count`` objects of 1000 bytes, the first used longest ago."""
    store = KernelStore(root, {"TASKMAP_CACHE_SIZE": "unlimited"})
    for n in range(count):
        path = store.add_object(bytes([n]) * 1000)
        store.add_kernels([StoredKernel(f"{n:064x}", f"kernel{n}", {})], path)
        when = time.time() - HOUR * (100 - n)
        os.utime(path, (when, when))
    return store


def found(store: KernelStore) -> list[int]:
    return [n for n in range(12) if store.lookup(f"{n:064x}", f"kernel{n}") is not None]


def test_writing_cuts_an_overgrown_store_back(tmp_path: Path) -> None:
    fill(tmp_path)
    store = KernelStore(tmp_path, LIMIT)
    path = store.add_object(b"new" * 100)
    store.add_kernels([StoredKernel(f"{11:064x}", "kernel11", {})], path)
    assert found(KernelStore(tmp_path, LIMIT)) == [6, 7, 8, 9, 11]
    assert len(list((tmp_path / "index").rglob("*.json"))) == 5


def test_what_was_looked_up_is_used(tmp_path: Path) -> None:
    """Independently of the file system's own record of reads."""
    store = fill(tmp_path)
    for n in (0, 3):
        os.utime(next(o.path for o in stored_objects(store.path) if o.symbols == (f"kernel{n}",)), (0, 0))
    assert KernelStore(tmp_path, LIMIT).lookup(f"{0:064x}", "kernel0") is not None
    assert enforce(tmp_path, 3000) == 8000
    assert found(KernelStore(tmp_path, LIMIT)) == [0, 9]


def test_scheduled_tasks_count(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    task = tmp_path / "tasks" / "ab" / "abc.json"
    task.parent.mkdir(parents=True)
    task.write_bytes(bytes(4000))
    os.utime(task, (0, 0))
    assert enforce(tmp_path, 5000) == 4000
    assert not task.exists()
    assert len(stored_objects(tmp_path)) == 4


def test_a_task_that_was_found_is_used(tmp_path: Path) -> None:
    store = TaskStore(tmp_path / "tasks")
    store.add("ab" * 32, TaskKernel(KernelSource("tm_f", "void tm_f(void) {}"), "by hand", Choice("cpu.pointwise")))
    (task,) = task_files(tmp_path)
    os.utime(task.path, (0, 0))
    assert store.find("ab" * 32) is not None
    assert time.time() - task.path.stat().st_mtime < HOUR


def test_what_was_used_just_now_stays(tmp_path: Path) -> None:
    store = KernelStore(tmp_path, {"TASKMAP_CACHE_SIZE": "100"})
    for n in range(5):
        store.add_kernels([StoredKernel(f"{n:064x}", f"kernel{n}", {})], store.add_object(bytes([n]) * 1000))
    assert found(store) == [0, 1, 2, 3, 4]
    assert enforce(tmp_path, 100, now=time.time() + HOUR) == 5000
    assert stored_objects(tmp_path) == []


def test_a_store_within_its_limit_is_not_touched(tmp_path: Path) -> None:
    fill(tmp_path)
    assert enforce(tmp_path, 10_000) == 0
    assert not (tmp_path / "limit.lock").exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path)
    with open(tmp_path / "limit.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert enforce(tmp_path, 1000) == 0
    assert enforce(tmp_path, 1000) > 0


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert enforce(tmp_path / "none", 0) == 0
    SizeLimit(0).written(tmp_path / "none", 10)


def test_how_often_a_store_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(store_limit, "enforce", lambda _, most: looked.append(most))
    limit = SizeLimit(1600)
    for _ in range(10):
        limit.written(tmp_path, 30)
    assert looked == [1600] * 3  # at first, and after every hundred bytes
    SizeLimit(None).written(tmp_path, 1 << 60)
    assert len(looked) == 3


@pytest.mark.parametrize(
    ("text", "most"), [("", DEFAULT), ("500M", 500 << 20), ("1.5 GiB", 3 << 29), ("Unlimited", None), ("0", 0)]
)
def test_the_limit(text: str, most: int | None) -> None:
    assert size_limit({"TASKMAP_CACHE_SIZE": text}) == most


@pytest.mark.parametrize("text", ["many", "-1", "5X", "1e9"])
def test_what_is_no_limit(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidOptionError, match="TASKMAP_CACHE_SIZE cannot be") as caught:
        KernelStore(tmp_path, {"TASKMAP_CACHE_SIZE": text})
    assert "500M" in str(caught.value)


def test_several_processes_at_once(tmp_path: Path) -> None:
    """Each writes and looks up while the others cut back; nothing fails, and every object found is complete."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom taskmap.backend.store import limit as store_limit\n"
        "from taskmap.backend.store.objects import KernelStore, StoredKernel\n"
        "store_limit.RECENT_SECONDS = -3600.0\n"
        f"store = KernelStore(Path({str(tmp_path)!r}), {{'TASKMAP_CACHE_SIZE': '20000'}})\n"
        "for n in range(60):\n"
        "    data = f'{sys.argv[1]} {n % 40}'.encode() * 100\n"
        "    path = store.add_object(data)\n"
        "    store.add_kernels([StoredKernel(f'{n:064x}', f'k{n}', {})], path)\n"
        "    there = KernelStore(store.path, {}).lookup(f'{n // 2:064x}', f'k{n // 2}')\n"
        "assert not store.is_private\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(i)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for i in range(3)
    ]
    for process in running:
        _, complaints = process.communicate(timeout=100)
        assert (process.returncode, complaints) == (0, "")
    enforce(tmp_path, 20_000, now=time.time() + HOUR)
    assert sum(o.bytes for o in stored_objects(tmp_path)) <= 20_000
    assert list((tmp_path / "tmp").iterdir()) == []
