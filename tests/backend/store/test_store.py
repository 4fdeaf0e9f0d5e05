"""The kernel store: round trips, damage, other users, folders that cannot be written, and leftovers of killed
processes."""

import errno
import json
import logging
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from taskmap.backend.store.folder import StoreFolder
from taskmap.backend.store.objects import KernelStore, StoredKernel, default_path
from taskmap.ir.errors import KernelStoreError

KEY, OTHER = "ab" * 32, "cd" * 32
DATA = b"an object" * 1000


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes files outside the store with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def fill(store: KernelStore, key: str = KEY, symbol: str = "f", data: bytes = DATA) -> Path:
    path = store.add_object(data)
    store.add_kernels([StoredKernel(key, symbol, {"isa": "avx2"})], path)
    return path


def entry_of(folder: Path, key: str = KEY) -> Path:
    return folder / "index" / key[:2] / f"{key}.json"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_kernel_is_found_by_a_later_store(cache_dir: Path) -> None:
    store = KernelStore()
    assert store.path == cache_dir
    assert store.lookup(KEY, "f") is None
    path = fill(store)
    for reader in (store, KernelStore()):
        assert reader.lookup(KEY, "f") == path
        assert reader.lookup(OTHER, "f") is None
    assert path.read_bytes() == DATA
    assert json.loads(entry_of(cache_dir).read_text())["parts"] == {"isa": "avx2"}


def test_an_object_alone_is_not_found(cache_dir: Path) -> None:
    KernelStore().add_object(DATA)
    assert KernelStore().lookup(KEY, "f") is None


def test_only_the_user_can_enter(cache_dir: Path) -> None:
    previous = os.umask(0)
    try:
        path = fill(KernelStore())
    finally:
        os.umask(previous)
    assert stat.S_IMODE(cache_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"TASKMAP_CACHE_DIR": str(tmp_path / "a"), "XDG_CACHE_HOME": str(tmp_path / "b")}
    assert KernelStore(tmp_path / "c", environ).path == tmp_path / "c"
    assert default_path(environ) == tmp_path / "a"
    assert default_path({"XDG_CACHE_HOME": str(tmp_path / "b")}) == tmp_path / "b" / "taskmap"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / "taskmap"
    assert default_path({}) == tmp_path / ".cache" / "taskmap"
    assert default_path({"TASKMAP_CACHE_DIR": "~/kernels"}) == tmp_path / "kernels"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home folder
    assert str(os.geteuid()) in default_path({}).name


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_object_is_removed_with_a_warning(
    cache_dir: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = fill(KernelStore())
    flipped = bytes([DATA[0] ^ 1]) + DATA[1:]
    path.write_bytes({"flip": flipped, "cut": DATA[:-1], "empty": b""}[damage])
    assert KernelStore().lookup(KEY, "f") is None
    assert not path.exists()
    assert "checksum" in warnings_of(caplog)[0]
    fill(KernelStore())
    assert KernelStore().lookup(KEY, "f") == path


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b'{"format": 1, "key": "',
        b"[]",
        json.dumps({"format": 1, "key": OTHER, "symbol": "f", "object": "0" * 64}).encode(),
        json.dumps({"format": 1, "key": KEY, "symbol": "g", "object": "0" * 64}).encode(),
        json.dumps({"format": 0, "key": KEY, "symbol": "f", "object": "0" * 64}).encode(),
        json.dumps({"format": 1, "key": KEY, "symbol": "f"}).encode(),
        json.dumps({"format": 1, "key": KEY, "symbol": "f", "object": "../../evil"}).encode(),
    ],
)
def test_a_damaged_entry_is_removed_with_a_warning(
    cache_dir: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = fill(KernelStore())
    entry_of(cache_dir).write_bytes(content)
    assert KernelStore().lookup(KEY, "f") is None
    assert not entry_of(cache_dir).exists()
    assert path.exists()
    assert len(warnings_of(caplog)) == 1


def test_a_lost_object_counts_as_missing(cache_dir: Path) -> None:
    fill(KernelStore()).unlink()
    assert KernelStore().lookup(KEY, "f") is None


def test_discarded_objects_are_not_found_again(cache_dir: Path) -> None:
    store = KernelStore()
    store.discard(fill(store), "it does not load")
    assert store.lookup(KEY, "f") is None


def test_a_folder_of_another_user_is_refused(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(KernelStore())
    monkeypatch.setattr(os, "geteuid", lambda: cache_dir.stat().st_uid + 1)
    with pytest.raises(KernelStoreError, match="another user") as error:
        KernelStore()
    assert str(cache_dir) in str(error.value)
    assert "TASKMAP_CACHE_DIR" in str(error.value)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, 0o777])
def test_a_folder_that_others_may_write_is_refused(absent_cache_dir: Path, mode: int) -> None:
    absent_cache_dir.mkdir()
    absent_cache_dir.chmod(mode)
    with pytest.raises(KernelStoreError, match="others may write") as error:
        KernelStore()
    assert f"chmod go-w {absent_cache_dir}" in str(error.value)


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_folder_that_others_may_read_is_accepted(absent_cache_dir: Path, mode: int) -> None:
    absent_cache_dir.mkdir()
    absent_cache_dir.chmod(mode)
    fill(KernelStore())
    assert KernelStore().lookup(KEY, "f") is not None


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = KernelStore(tmp_path / "file" / "store")
    assert store.is_private
    path = fill(store)
    assert store.lookup(KEY, "f") == path
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    assert len(warnings_of(caplog)) == 1
    assert "TASKMAP_CACHE_DIR" in warnings_of(caplog)[0]


def test_a_read_only_folder(cache_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = fill(KernelStore())
    for folder in (cache_dir, *cache_dir.rglob("*/")):
        folder.chmod(0o500)
    if os.access(cache_dir, os.W_OK):
        pytest.skip("root may write everywhere")
    store = KernelStore()
    added = fill(store, OTHER, "g", b"another")
    assert store.lookup(KEY, "f") == stored
    assert store.lookup(OTHER, "g") == added
    assert not added.is_relative_to(cache_dir)
    assert len(warnings_of(caplog)) == 1
    for folder in (cache_dir, *cache_dir.rglob("*/")):
        folder.chmod(0o700)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_folder_that_cannot_be_written(
    cache_dir: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = fill(KernelStore())
    store = KernelStore()
    refuse_writing_under(cache_dir, code, monkeypatch)
    added = fill(store, OTHER, "g", b"another")
    fill(store, "ef" * 32, "h", b"a third")
    assert store.is_private
    assert store.lookup(KEY, "f") == stored  # what could be read still can
    assert store.lookup(OTHER, "g") == added
    assert not added.is_relative_to(cache_dir)
    assert len(warnings_of(caplog)) == 1
    assert os.strerror(code) in warnings_of(caplog)[0]
    assert store.keep_failed("int x").read_text() == "int x"


def test_a_disk_that_fills_up_while_a_file_is_written(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = KernelStore()
    fill(store)

    def replace(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KernelStoreError, match="anywhere"):  # the temporary folder is full as well
            store.add_object(b"another")
    assert list((cache_dir / "tmp").iterdir()) == []
    assert KernelStore().lookup(KEY, "f") is not None


def test_kernels_that_cannot_be_indexed_are_no_error(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = KernelStore()
    path = store.add_object(DATA)
    refuse_writing_under(cache_dir, errno.ENOSPC, monkeypatch)
    store.add_kernels([StoredKernel(KEY, "f", {})], path)
    assert store.lookup(KEY, "f") is None
    assert len(warnings_of(caplog)) == 1


def test_what_killed_writers_left_is_removed_after_an_hour(cache_dir: Path) -> None:
    fill(KernelStore())
    old, new = cache_dir / "tmp" / "old", cache_dir / "tmp" / "new"
    for path in (old, new):
        path.write_text("half")
    before = time.time() - 3700
    os.utime(old, (before, before))
    KernelStore()
    assert not old.exists()
    assert new.exists()


def test_refused_sources_are_kept_for_a_week(cache_dir: Path) -> None:
    path = KernelStore().keep_failed("int x")
    assert path.read_text() == "int x"
    KernelStore()
    assert path.exists()
    before = time.time() - 8 * 24 * 3600
    os.utime(path, (before, before))
    KernelStore()
    assert not path.exists()


def test_the_private_folder_goes_with_its_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = KernelStore(tmp_path / "file" / "store")
    folder = store.path
    assert folder.is_dir()
    del store
    assert not folder.exists()


def refuse_writing_under(folder: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a full disk or a file system mounted read-only; works for root as well."""
    write = StoreFolder._write

    def refuse(self: StoreFolder, path: Path, data: bytes) -> None:
        if path.is_relative_to(folder):
            raise OSError(code, os.strerror(code), str(path))
        write(self, path, data)

    monkeypatch.setattr(StoreFolder, "_write", refuse)
