"""`taskmap cache ... --kernels`: sizes, use, pruning, damage."""

import json
import os
import time
from pathlib import Path

import pytest

from taskmap.backend.store.inventory import stored_objects
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.cli import main
from taskmap.cli.output import bytes_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(cache_dir: Path) -> KernelStore:
    """Three objects of 1000 bytes, the first used longest ago, and a fourth, unreachable one."""
    made = KernelStore(cache_dir)
    for n in range(4):
        path = made.add_object(bytes([n]) * 1000)
        if n < 3:
            made.add_kernels([StoredKernel(f"{n:064x}", f"kernel{n}", {"isa": "avx2"})], path)
        when = time.time() - 86400 * (10 - n)
        os.utime(path, (when, when))
    return made


def run(*arguments: object) -> int:
    return main(["cache", *(str(a) for a in arguments), "--kernels"])


def symbols(store: KernelStore) -> list[tuple[str, ...]]:
    return [o.symbols for o in stored_objects(store.path)]


def test_list_and_stats(store: KernelStore, capsys: Capture) -> None:
    assert run("list") == 0
    out = capsys.readouterr().out
    assert "4 objects, 3 kernels, 3.9 KiB" in out
    assert "avx2" in out
    assert run("list", "--json", "--limit", 2) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert run("stats", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["objects"], found["kernels"], found["unreachable"], found["bytes"]) == (4, 3, 1, 4000)
    assert run("path") == 0
    assert capsys.readouterr().out == f"{store.path}\n"


def test_the_least_recently_used_go_first(store: KernelStore, capsys: Capture) -> None:
    assert run("prune", "--max-size", "2K", "--dry-run") == 0
    assert len(symbols(store)) == 4
    assert run("prune", "--max-size", "2K") == 0
    assert symbols(store) == [("kernel2",), ()]
    assert store.lookup(f"{0:064x}", "kernel0") is None
    assert store.lookup(f"{2:064x}", "kernel2") is not None


def test_old_ones_go(store: KernelStore, capsys: Capture) -> None:
    assert run("prune", "--older", 8.5, "--json") == 0
    assert json.loads(capsys.readouterr().out)["objects"] == 2
    assert symbols(store) == [("kernel2",), ()]
    assert run("prune") == 2


def test_damaged_ones_are_removed(store: KernelStore, capsys: Capture) -> None:
    stored_objects(store.path)[0].path.write_bytes(b"x")
    assert run("verify") == 1
    assert "3 objects are sound, 1 were damaged" in capsys.readouterr().out
    assert run("verify", "--json") == 0


def test_entries_that_lead_to_nothing_are_removed(store: KernelStore, capsys: Capture) -> None:
    stored_objects(store.path)[0].path.unlink()
    next((store.path / "index").rglob("0*1.json")).write_bytes(b"{")
    assert run("verify") == 1
    assert "2 entries of the index were damaged or unreachable, and have been removed" in capsys.readouterr().out
    assert len(list((store.path / "index").rglob("*.json"))) == 1
    assert run("verify", "--json") == 0


def test_scheduled_tasks_are_pruned_by_use_too(store: KernelStore, capsys: Capture) -> None:
    task = store.path / "tasks" / "aa" / "task.json"
    task.parent.mkdir(parents=True)
    task.write_bytes(b"x" * 500)
    when = time.time() - 86400 * 8.7  # between the second object and the third
    os.utime(task, (when, when))
    assert run("prune", "--older", 8.5, "--dry-run") == 0
    assert "2 objects and 1 scheduled tasks, 2.4 KiB, would be removed; 2.0 KiB left" in capsys.readouterr().out
    assert run("prune", "--max-size", "2500", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "objects": 2, "tasks": 0, "bytes": 2000, "left_bytes": 2500, "dry_run": False,
    }  # fmt: skip
    assert run("prune", "--max-size", "2000", "--name", "kernel2") == 0
    assert task.exists()
    assert run("prune", "--max-size", "2000") == 0
    assert not task.exists()


def test_kernels_are_chosen_by_name_and_target(store: KernelStore, capsys: Capture) -> None:
    assert run("list", "--json", "--name", "kernel1") == 0
    assert [o["kernels"] for o in json.loads(capsys.readouterr().out)] == [["kernel1"]]
    assert run("list", "--json", "--target", "avx512") == 0
    assert json.loads(capsys.readouterr().out) == []
    for refused in (["--shapes", "1x2x3"], ["--stale"], ["--verdict", "ok"]):
        assert run("list", *refused) == 2
    assert run("prune", "--max-records", 2, "--older", 1) == 2
    assert run("verify", "--measure", 2) == 2


def test_what_cannot_be_removed_is_said(store: KernelStore, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    stored_objects(store.path)[0].path.write_bytes(b"x")
    monkeypatch.setattr(Path, "unlink", read_only)
    assert run("clear", "--yes") == 1
    assert "0 B of kernels and 0 scheduled tasks removed\n2.9 KiB could not be removed" in capsys.readouterr().out
    assert run("verify") == 1
    assert "3 objects are sound, 1 were damaged and cannot be removed" in capsys.readouterr().out


def test_clear(store: KernelStore, capsys: Capture) -> None:
    assert run("clear") == 2
    assert run("clear", "--yes") == 0
    assert symbols(store) == []


def test_a_store_that_others_may_write_to_is_left_alone(store: KernelStore, capsys: Capture) -> None:
    os.chmod(store.path, 0o777)
    assert run("clear", "--yes") == 2
    assert "others may write to the kernel store" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "count"), [("500", 500), ("2K", 2048), ("1.5M", 3 << 19), ("1GiB", 1 << 30), ("7 b", 7)]
)
def test_sizes(text: str, count: int) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "M", "-1K", "1X", "1KK"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(Exception, match="is not a size"):
        bytes_of(text)
