"""Temporary folders are removed with their owners; those of killed owners are swept, those of living ones are not."""

import errno
import os
import stat
import tempfile
import time
from pathlib import Path

import pytest

from taskmap.backend.store.scratch import Scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_old(folder: Path) -> None:
    before = time.time() - 3700
    os.utime(folder, (before, before))


def test_removed_on_leaving() -> None:
    with Scratch() as folder:
        (folder / "unit.o").write_text("x")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_removed_with_its_owner() -> None:
    scratch = Scratch()
    folder = scratch.path
    del scratch
    assert not folder.exists()


def test_not_removed_by_a_forked_child() -> None:
    scratch = Scratch()
    child = os.fork()
    if child == 0:
        scratch.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert scratch.path.exists()
    scratch.close()


def test_an_old_folder_is_swept_only_when_its_owner_is_gone(temporary: Path) -> None:
    living = Scratch()
    dead, young, foreign = (temporary / name for name in (living.path.name + "dead", living.path.name + "y", "other"))
    for folder in (dead, young, foreign):
        folder.mkdir()
        (folder / "lock").touch()
    for folder in (living.path, dead, foreign):
        make_old(folder)
    Scratch()
    assert [folder.exists() for folder in (living.path, dead, young, foreign)] == [True, False, True, True]
    living.close()


def test_a_file_system_without_locks(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks a living owner cannot be recognised, so no other owner's folder is removed."""

    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("taskmap.backend.store.scratch.fcntl.flock", refused)
    first = Scratch()
    os.utime(first.path, (0, 0))
    with Scratch():
        assert first.path.exists()
    first.close()
    assert not first.path.exists()


def test_a_link_is_never_followed(temporary: Path) -> None:
    with Scratch() as folder:
        name = folder.name
    target = temporary / "target"
    target.mkdir()
    (target / "precious").touch()
    make_old(target)
    (temporary / name).symlink_to(target)
    Scratch()
    assert (target / "precious").exists()
