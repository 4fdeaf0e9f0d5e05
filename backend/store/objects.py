"""The kernel store: compiled kernels kept between processes, safe against damage, full disks and other users."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from taskmap.backend.store.folder import DamagedEntryError, StoreFolder
from taskmap.backend.store.limit import SizeLimit, size_limit
from taskmap.backend.store.scratch import Scratch
from taskmap.ir.errors import KernelStoreError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredKernel:
    """A kernel under its key: the C symbol, the parts of the key, and facts worth keeping about it."""

    key: str
    symbol: str
    parts: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)


class KernelStore:
    """Kernels by key, in a folder that many processes and threads may use at once.

    A folder that cannot be written is replaced, after one logged warning, by a private temporary one that lasts as long
    as this object; kernels in the first folder are still found. Damaged entries are removed and count as missing. A
    folder that grows beyond TASKMAP_CACHE_SIZE loses the least recently used kernels (see limit.py).
    """

    def __init__(self, path: Path | None = None, environ: Mapping[str, str] | None = None, suffix: str = ".so") -> None:
        """Opens the store in `path`, or in $TASKMAP_CACHE_DIR, $XDG_CACHE_HOME/taskmap or ~/.cache/taskmap.

        ``suffix`` is the ending of the files that hold kernels: stores of several suffixes may share a folder. Raises
        KernelStoreError if the folder belongs to another user or others may write to it, because they could run code as
        this user; InvalidOptionError if TASKMAP_CACHE_SIZE is not a size.
        """
        self._lock = Lock()
        self._limit = SizeLimit(size_limit(environ))
        self._verified: dict[str, Path] = {}
        self._private: tuple[Scratch, StoreFolder] | None = None
        self._folder = StoreFolder(Path(path).absolute() if path is not None else default_path(environ), suffix)
        try:
            self._folder.create()
            _check_private(self._folder.root)
            self._folder.sweep()
        except OSError as error:
            self._fall_back(self._folder, error)

    @property
    def path(self) -> Path:
        """The folder to which kernels are written now."""
        return self._writing().root

    @property
    def is_private(self) -> bool:
        """True if kernels go to a temporary folder, because the store's own cannot be written."""
        return self._private is not None

    def lookup(self, key: str, symbol: str) -> Path | None:
        """The shared object that holds a kernel, its checksum verified; None if the kernel must be compiled."""
        for folder in self._folders():
            path = self._lookup_in(folder, key, symbol)
            if path is not None:
                return path
        return None

    def facts(self, key: str, symbol: str) -> Mapping[str, str]:
        """The stored facts about a kernel that `lookup` found; empty if the entry is gone or damaged."""
        for folder in self._folders():
            try:
                if facts := folder.facts(key, symbol):
                    return facts
            except (DamagedEntryError, OSError):
                continue
        return {}

    def add_object(self, data: bytes) -> Path:
        """Writes the content of a shared object; no kernel is found in it before `add_kernels`.

        Raises KernelStoreError if not even the temporary folder can be written.
        """
        folder, checksum = self._add_object(self._writing(), data)
        path = folder.object_path(checksum)
        with self._lock:
            self._verified[checksum] = path
        self._limit.written(folder.root, len(data))
        return path

    def add_kernels(self, kernels: Iterable[StoredKernel], path: Path) -> None:
        """Makes `kernels` available in the object that `add_object` wrote to `path`."""
        folder = next(folder for folder in self._folders() if path.is_relative_to(folder.root))
        try:
            for kernel in kernels:
                folder.add_entry(kernel.key, kernel.symbol, path.stem, kernel.parts, kernel.facts)
        except OSError as error:
            self._fall_back(folder, error)

    def kept_file(self, key: str, symbol: str) -> tuple[Path, Mapping[str, str]] | None:
        """A file that `keep_file` wrote, and its facts; None if there is none. Its content is not verified."""
        for folder in self._folders():
            path = folder.object_path(key)
            try:
                facts = folder.facts(key, symbol)
            except (DamagedEntryError, OSError):
                continue
            if facts and path.is_file():
                folder.mark_used(path)
                return path, facts
        return None

    def keep_file(
        self, key: str, symbol: str, parts: Mapping[str, str], facts: Mapping[str, str], write: Callable[[Path], None]
    ) -> None:
        """Keeps the content that ``write`` writes to the path that it is given, the whole file or nothing. Raises
        OSError."""
        folder = self._writing()
        path = folder.object_path(key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.remove(folder.entry_path(key))
        write(path)
        folder.add_entry(key, symbol, key, parts, facts)
        self._limit.written(folder.root, path.stat().st_size)

    def discard(self, path: Path, reason: str) -> None:
        """Removes an object that turned out to be unusable; its kernels count as missing from now on."""
        _log.warning("taskmap removed a kernel from its store and compiles it again: %s: %s", path, reason)
        with self._lock:
            self._verified.pop(path.stem, None)
        self._folder.remove(path)

    def keep_failed(self, source: str) -> Path:
        """Keeps a source that the compiler rejected, and returns its path."""
        try:
            return self._folder.add_failed(source)
        except OSError:
            descriptor, name = tempfile.mkstemp(prefix="taskmap-failed-", suffix=".c")
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(source)
            return Path(name)

    def _add_object(self, folder: StoreFolder, data: bytes) -> tuple[StoreFolder, str]:
        try:
            return folder, folder.add_object(data)
        except OSError as error:
            return self._add_object(self._fall_back(folder, error), data)

    def _folders(self) -> list[StoreFolder]:
        return [self._folder] if self._private is None else [self._private[1], self._folder]

    def _writing(self) -> StoreFolder:
        return self._folders()[0]

    def _lookup_in(self, folder: StoreFolder, key: str, symbol: str) -> Path | None:
        try:
            checksum = folder.find(key, symbol)
        except DamagedEntryError as error:
            _log.warning("taskmap removed a damaged entry of its kernel store: %s: %s", folder.entry_path(key), error)
            folder.remove(folder.entry_path(key))
            return None
        except OSError as error:
            _log.debug("cannot read %s: %s", folder.entry_path(key), error)
            return None
        return self._verified_object(folder, checksum) if checksum is not None else None

    def _verified_object(self, folder: StoreFolder, checksum: str) -> Path | None:
        path = folder.object_path(checksum)
        with self._lock:
            if self._verified.get(checksum) == path:
                return path
        try:
            if not folder.verify(checksum):
                return None
        except DamagedEntryError as error:
            self.discard(path, str(error))
            return None
        except OSError as error:
            _log.debug("cannot read %s: %s", path, error)
            return None
        folder.mark_used(path)
        with self._lock:
            self._verified[checksum] = path
        return path

    def _fall_back(self, failed: StoreFolder, error: OSError) -> StoreFolder:
        """The private temporary folder to write to from now on, because writing to `failed` did not work."""
        with self._lock:
            if self._private is None:
                scratch = Scratch()
                self._private = (scratch, StoreFolder(scratch.path, failed.suffix))
                _log.warning(
                    "taskmap cannot write to its kernel store %s (%s). Kernels are compiled into a temporary folder "
                    "and are lost when this process ends. Let TASKMAP_CACHE_DIR name a folder that can be written.",
                    failed.root,
                    str(error),  # not the error itself: its traceback would keep this store alive in the log
                )
            private = self._private[1]
        if failed.root == private.root:
            raise KernelStoreError(
                "cannot write compiled kernels anywhere",
                where=str(private.root),
                why=str(error),
                hint="Make room in the temporary folder, or let TMPDIR name another one.",
            ) from error
        return private


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """The default folder of the kernel store."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get("TASKMAP_CACHE_DIR"):
        return Path(os.path.expanduser(chosen)).absolute()
    # The XDG specification requires relative paths to be ignored; a user without a home folder exists in containers.
    for caches in (environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(caches):
            return Path(caches, "taskmap")
    return Path(tempfile.gettempdir(), f"taskmap-cache-{os.geteuid()}")


def _check_private(root: Path) -> None:
    status = os.stat(root)
    if status.st_uid != os.geteuid():
        raise KernelStoreError(
            "the kernel store belongs to another user",
            where=str(root),
            why=f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}.",
            hint="Let TASKMAP_CACHE_DIR name a folder of your own.",
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise KernelStoreError(
            "others may write to the kernel store",
            where=str(root),
            why=f"its mode is {stat.S_IMODE(status.st_mode):o}: whoever writes there can run code as you.",
            hint=f"Run: chmod go-w {root}. If you did not make it so, remove the folder first.",
        )
