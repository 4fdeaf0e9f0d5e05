"""The container of an archive: a zip with uncompressed, aligned entries that are identified by name alone.

A zip can be inspected with common tools; only the needed subset of that format is accepted. docs/archive-format.md
specifies it. This module trusts nothing in the file: sizes and offsets are checked against the file itself.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from taskmap.archive.memory import FileWindow, in_memory
from taskmap.ir.errors import ArchiveError, InputError
from taskmap.ir.util.atomic_write import replaced

SUFFIX = ".taskmap"
MANIFEST, WEIGHTS = "manifest.json", "weights.bin"
PAGE = 4096
"""Alignment of the weights: a multiple of a page, so that they can be mapped by themselves."""
ALIGNMENT = 64
MOST_MANIFEST = 1 << 28

_ENTRY = re.compile(r"manifest\.json|weights\.bin|kernels/[0-9]{1,5}\.(so|cubin)")
_LOCAL = struct.Struct("<4s5H3L2H")
_PADDING = 0xD935  # the extra field by which zipalign aligns entries: the alignment, then zeros
_ZIP64_EXTRA = 20
_LARGE = 1 << 30
_CHUNK = 8 << 20
_AGAIN = "Make it again: taskmap compile model.onnx -o model.taskmap"
_COMMENT = b"taskmap archive, sha256 of the manifest: "


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A part of an archive to be written: its content in pieces of ``size`` bytes in total."""

    name: str
    size: int
    content: Iterable[bytes | memoryview]
    alignment: int = ALIGNMENT


class ArchiveFile:
    """A file mapped into memory, with its entries found and its manifest's checksum verified; nothing else is read."""

    def __init__(self, path: Path, sha256: str | None = None) -> None:
        """``sha256``: the expected checksum of the whole file; the file is then copied, so that nobody can change it.

        ``manifest`` is the text that describes the archive. Raises ArchiveError, and InputError if there is no file.
        """
        self.path = path
        try:
            memory = in_memory(path, copied=sha256 is not None)
        except OSError as error:
            raise InputError(f"the archive {path} cannot be read", why=f"{error}.") from error
        if memory is None:
            raise self.error("is empty or not a file")
        self.memory = memory
        self._check_whole(sha256)
        self.entries, wanted = self._find()
        self.manifest = bytes(self.entry(MANIFEST))
        if digest(self.manifest) != wanted:
            raise self.error("is damaged", "the manifest's checksum does not match.")

    def entry(self, name: str) -> memoryview:
        """The content of an entry."""
        if name not in self.entries:
            raise self.error("is incomplete", f"it has no entry {name}.")
        start, size = self.entries[name]
        return memoryview(self.memory)[start : start + size]

    def error(self, what: str, why: str | None = None, hint: str = _AGAIN) -> ArchiveError:
        """An error about this file."""
        return ArchiveError(f"{self.path} {what}", why=why, hint=hint)

    def _check_whole(self, sha256: str | None) -> None:
        if sha256 is None:
            return
        if digest(memoryview(self.memory)) != sha256.strip().lower():
            raise self.error("is not the archive that was asked for", f"its SHA-256 is not {_shown(sha256)}.")

    def _find(self) -> tuple[dict[str, tuple[int, int]], str]:
        """The extents of the entries, and the manifest's checksum."""
        if self.memory[:4] != b"PK\x03\x04":
            raise self.error("is not an archive", "it is not a zip file.")
        try:
            with zipfile.ZipFile(io.BufferedReader(FileWindow(self.memory))) as found:
                infos, comment, end = found.infolist(), found.comment, found.start_dir
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OverflowError, OSError) as error:
            raise self.error("is truncated or damaged", f"its directory cannot be read: {error}.") from error
        if comment and _COMMENT.startswith(comment[: len(_COMMENT)]) and len(comment) != len(_COMMENT) + 64:
            raise self.error("is truncated or damaged", "its last bytes are missing.")
        if not comment.startswith(_COMMENT):
            raise self.error("is not an archive", "it is a zip file that taskmap did not write.")
        entries: dict[str, tuple[int, int]] = {}
        for info in infos:
            if not _ENTRY.fullmatch(info.orig_filename):
                raise self.error("is not a valid archive", f"it has an entry called {_shown(info.orig_filename)}.")
            if info.orig_filename in entries:
                raise self.error("is not a valid archive", f"it has two entries {info.orig_filename}.")
            entries[info.orig_filename] = self._place(info, end)
        self._check_disjoint(entries)
        if MANIFEST in entries and entries[MANIFEST][1] > MOST_MANIFEST:
            raise self.error("is not a valid archive", "its manifest is too large.")
        return entries, comment[len(_COMMENT) :].decode("ascii", "replace")

    def _place(self, info: zipfile.ZipInfo, end: int) -> tuple[int, int]:
        """The extent of an entry's content."""
        name = info.orig_filename
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise self.error("is not a valid archive", f"the entry {name} is compressed or encrypted.")
        start = info.header_offset + _LOCAL.size
        if info.header_offset < 0 or start > end:
            raise self.error("is damaged", f"the entry {name} lies outside the file.")
        header = _LOCAL.unpack(self.memory[info.header_offset : start])
        length, extra = header[-2:]
        if header[0] != b"PK\x03\x04" or self.memory[start : start + length] != name.encode():
            raise self.error("is damaged", f"the entry {name} is not where the directory says.")
        start += length + extra
        if start % ALIGNMENT:
            raise self.error("is damaged", f"the entry {name} does not begin where it should.")
        if start + info.file_size > end:
            raise self.error("is truncated or damaged", f"the entry {name} does not end within the file.")
        return start, info.file_size

    def _check_disjoint(self, entries: dict[str, tuple[int, int]]) -> None:
        last = 0
        for start, size in sorted(entries.values()):
            if start < last:
                raise self.error("is damaged", "two of its entries overlap.")
            last = start + size


def is_archive(path: Path) -> bool:
    """True if a file is an archive, or claims to be one, rather than an ONNX model."""
    if path.suffix == SUFFIX:
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def digest(content: bytes | memoryview) -> str:
    """The SHA-256 of ``content`` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_archive(
    path: Path, manifest: bytes, entries: Iterable[ArchiveEntry], progress: Callable[[int], None] = lambda _: None
) -> None:
    """Write an archive atomically; ``progress`` is called with the bytes written so far.

    Raises InputError when it cannot be written.
    """
    written = 0
    with (
        _explained(path),
        replaced(path, durable=True) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        archive.comment = _COMMENT + digest(manifest).encode()
        for entry in (ArchiveEntry(MANIFEST, len(manifest), [manifest]), *entries):
            with archive.open(_info(entry, file.tell()), "w", force_zip64=entry.size >= _LARGE) as target:
                for piece in entry.content:
                    for start in range(0, len(piece), _CHUNK):
                        written += target.write(piece[start : start + _CHUNK])
                        progress(written)


def check_writable(path: Path) -> None:
    """Raises InputError if ``path`` certainly cannot be written."""
    with _explained(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, f"the folder {path.parent} cannot be written")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "Make room, or write to another disk. The previous file is kept." if full else None
        raise InputError(f"the archive {path} cannot be written", why=f"{error.strerror}.", hint=hint) from error


def _info(entry: ArchiveEntry, offset: int) -> zipfile.ZipInfo:
    """The header of an entry with aligned content."""
    info = zipfile.ZipInfo(entry.name, (1980, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr = 3, 0o600 << 16
    info.file_size = entry.size
    head = offset + _LOCAL.size + len(entry.name) + (_ZIP64_EXTRA if entry.size >= _LARGE else 0)
    length = -head % entry.alignment
    length += 0 if length >= 6 else entry.alignment
    info.extra = struct.pack("<HHH", _PADDING, length - 4, entry.alignment) + bytes(length - 6)
    return info


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 100 else name[:97] + "...")
