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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskmap.backend.store.scratch import LEFTOVER_SECONDS
from taskmap.ir.util.atomic_write import atomic_write

_FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FAILED_SECONDS = 7 * 24 * 3600.0
_USED_SECONDS = 3600.0


class DamagedEntryError(Exception):
    """An index entry or its object differs from what was written."""


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
        if entry is None:
            return None
        checksum = entry.get("object")
        if not isinstance(checksum, str) or not _DIGEST.fullmatch(checksum):
            raise DamagedEntryError("the index entry names no object")
        return checksum

    def facts(self, key: str, symbol: str) -> Mapping[str, str]:
        """The recorded facts of a kernel beside its object. Raises DamagedEntryError if the entry is invalid."""
        entry = self._entry(key, symbol) or {}
        facts = entry.get("facts", {})
        if not isinstance(facts, dict):
            raise DamagedEntryError("the index entry's facts are none")
        return facts

    def _entry(self, key: str, symbol: str) -> dict[str, Any] | None:
        try:
            data = self.entry_path(key).read_bytes()
        except FileNotFoundError:
            return None
        try:
            entry = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DamagedEntryError(f"unreadable index entry: {error}") from error
        expected = {"format": _FORMAT, "key": key, "symbol": symbol}
        if not isinstance(entry, dict) or any(entry.get(name) != value for name, value in expected.items()):
            raise DamagedEntryError("the index entry is of another kernel or format")
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
        entry = {"format": _FORMAT, "key": key, "symbol": symbol, "object": checksum, "parts": dict(parts)}
        if facts:
            entry["facts"] = dict(facts)
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
