"""Atomic writes: the old content or the new, and nothing left beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskmap.ir.errors import InputError
from taskmap.ir.util import atomic_write as module
from taskmap.ir.util.atomic_write import atomic_write, replaced, write_output


@pytest.fixture(params=[False, True], ids=["unnamed", "named"], autouse=True)
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has files without names, and one that has none."""
    if request.param:
        monkeypatch.setattr(module, "_unnamed", lambda *_: None)


def test_texts_and_bytes_take_the_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, "tür")
    assert path.read_bytes() == "tür".encode()
    atomic_write(path, b"\0")
    assert path.read_bytes() == b"\0"
    assert os.listdir(tmp_path) == ["file"]


def test_an_exception_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with replaced(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_mode_and_the_folder_of_the_temporary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, path = tmp_path / "tmp", tmp_path / "file"
    scratch.mkdir()
    names: list[Path] = []
    replace = os.replace

    def noted(old: Path, new: Path) -> None:
        names.append(old.parent)
        replace(old, new)

    monkeypatch.setattr(os, "replace", noted)
    atomic_write(path, b"x", scratch=scratch, mode=0o600)
    assert names == [scratch]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(scratch.iterdir()) == []


def test_what_cannot_be_written_is_one_error_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the page cannot be written to .*\n  No such file"):
        write_output(tmp_path / "none" / "page.html", "text", "the page")
