"""The files of a kernel store: shared objects named by their checksum, and one index entry for each kernel.

    objects/<sha256 of the content>.so     a compiler's output, several kernels in each; .cubin for a GPU
    index/<2 digits>/<kernel key>.json     which object holds the kernel
    tmp/                                   files being written; each is renamed into its place when complete
    failed/<checksum>.c                    sources that the compiler refused

A reader sees a whole file or none. The checksum reveals files that a machine crash or a bad disk has torn.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from taskmap.backend.store.scratch import LEFTOVER_SECONDS
from taskmap.ir.util.atomic_write import atomic_write
from taskmap.ir.util.codec import TEXT, Codec, mapping, matching, parsed, record, text, whole

_FORMAT = 1
_FAILED_SECONDS = 7 * 24 * 3600.0
_USED_SECONDS = 3600.0


class DamagedEntryError(Exception):
    """An index entry or its object differs from what was written."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The entry of a kernel: the checksum of the ``object`` that holds it, the ``parts`` of its key, which are for
    readers, and facts about the kernel."""

    key: str
    symbol: str
    object: str
    parts: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)
    format: int = _FORMAT


_TEXTS = mapping(text(1 << 28))
_ENTRY: Codec[IndexEntry] = record(
    IndexEntry,
    format=whole(_FORMAT, _FORMAT + 1),
    key=TEXT,
    symbol=TEXT,
    object=matching(re.compile(r"[0-9a-f]{64}"), "a checksum"),
    parts=_TEXTS.omitted({}),
    facts=_TEXTS.omitted({}),
)


def read_entry(path: Path) -> IndexEntry:
    """The index entry in a file. Raises OSError, and ValueError for an invalid one."""
    return _ENTRY.read(parsed(path.read_bytes(), "the index entry"))


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """A store's files under `root`, its objects with the ending `suffix`.

    Methods raise the file system's OSError, and make no decisions.
    """

    root: Path
    suffix: str = ".so"

    def create(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def object_path(self, checksum: str) -> Path:
        return self.root / "objects" / f"{checksum}{self.suffix}"

    def entry_path(self, key: str) -> Path:
        return self.root / "index" / key[:2] / f"{key}.json"

    def find(self, key: str, symbol: str) -> str | None:
        """Checksum of the object that holds a kernel, or None. Raises DamagedEntryError if the entry is invalid."""
        entry = self._entry(key, symbol)
        return None if entry is None else entry.object

    def facts(self, key: str, symbol: str) -> Mapping[str, str]:
        """The recorded facts of a kernel beside its object. Raises DamagedEntryError if the entry is invalid."""
        entry = self._entry(key, symbol)
        return {} if entry is None else entry.facts

    def _entry(self, key: str, symbol: str) -> IndexEntry | None:
        try:
            entry = read_entry(self.entry_path(key))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DamagedEntryError(str(error)) from error
        if (entry.key, entry.symbol) != (key, symbol):
            raise DamagedEntryError("the index entry is for another kernel")
        return entry

    def verify(self, checksum: str) -> bool:
        """True if the object exists. Raises DamagedEntryError if its content has changed."""
        try:
            data = self.object_path(checksum).read_bytes()
        except FileNotFoundError:
            return False
        if hashlib.sha256(data).hexdigest() != checksum:
            raise DamagedEntryError("the object's checksum does not match")
        return True

    def mark_used(self, path: Path) -> None:
        """Records the use of a file, which many file systems do not by themselves; hours apart, as far as possible."""
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _USED_SECONDS:
                os.utime(path)

    def add_object(self, data: bytes) -> str:
        """Stores an object and returns its checksum. An existing object is replaced: it may be damaged."""
        checksum = hashlib.sha256(data).hexdigest()
        self._write(self.object_path(checksum), data)
        return checksum

    def add_entry(
        self, key: str, symbol: str, checksum: str, parts: Mapping[str, str], facts: Mapping[str, str]
    ) -> None:
        """Records that the object `checksum` holds a kernel; `parts` are the parts of its key, for readers."""
        entry = _ENTRY.write(IndexEntry(key, symbol, checksum, parts, facts))
        self._write(self.entry_path(key), json.dumps(entry, indent=1).encode())

    def add_failed(self, source: str) -> Path:
        path = self.root / "failed" / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.c"
        self._write(path, source.encode())
        return path

    def remove(self, path: Path) -> None:
        """Removes a file if possible."""
        with contextlib.suppress(OSError):
            path.unlink()

    def sweep(self) -> None:
        """Removes leftovers of killed writers, and rejected sources that nobody has read for a week."""
        now = time.time()
        for name, age in (("tmp", LEFTOVER_SECONDS), ("failed", _FAILED_SECONDS)):
            with contextlib.suppress(OSError):
                for path in (self.root / name).iterdir():
                    if path.stat().st_mtime < now - age:
                        self.remove(path)

    def _write(self, path: Path, data: bytes) -> None:
        scratch = self.root / "tmp"
        for folder in (scratch, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(path, data, scratch=scratch, mode=0o600)
