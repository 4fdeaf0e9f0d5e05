"""The C of scheduled tasks, kept between processes, so that a warm compilation neither schedules nor lowers.

An entry's key is one hash over everything that can change the C: the task, the target, the configuration chosen by
tuning, and the text of the compiler itself. Entries lie in the kernel store's folder, which is private to the user;
binaries belong to the kernel store. A damaged entry counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from taskmap.backend.store import key as kernel_source
from taskmap.backend.store.folder import StoreFolder
from taskmap.backend.store.records import read_record, write_record
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.target import Target
from taskmap.ir.util.codec import TEXT, many, record, text
from taskmap.schedules import Choice
from taskmap.targets.source_record import SOURCE, Source

_log = logging.getLogger(__name__)
_FORMAT = 5


@dataclass(frozen=True, slots=True)
class TaskKernel:
    """The compiled form of a task: its source, and ``note``, the template or rule with its configuration, for people.

    ``choice``: the same as a value. ``instead_of``: the notes of the kernels that it replaces, the latest first, and
    ``refusal``, the reason why the latest was refused (its own, where no other was left).
    """

    source: Source
    note: str
    choice: Choice
    instead_of: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def schedule(self) -> str:
        """The task's schedule, for people."""
        text = " instead of ".join((self.note, *self.instead_of))
        return f"{text}: {self.refusal}" if self.refusal else text

    def replaced_by(self, other: TaskKernel, refusal: str) -> TaskKernel:
        """``other``, made because this kernel was refused."""
        return replace(other, instead_of=(self.note, *self.instead_of), refusal=refusal)


_TEXT = text(1 << 20)
_CHOICE = record(Choice, template=TEXT, config=TEXT)
_KERNEL = record(TaskKernel, source=SOURCE, note=_TEXT, choice=_CHOICE, instead_of=many(_TEXT), refusal=_TEXT)


def entry_key(task_key: str, target: Target, compiler: str, config: str = "") -> str:
    """The name of a task's entry; ``compiler`` is the version of taskmap's own text, ``config`` the configuration that
    tuning chose."""
    parts = [task_key, repr(target), compiler, str(_FORMAT), str(kernel_source.RUNTIME_ABI), config]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TaskStore:
    """Entries in ``folder``. Many processes and threads may use it at once; no method raises OSError."""

    folder: Path

    def find(self, key: str) -> TaskKernel | None:
        """The kernel of the entry ``key``, or None."""
        path = self._path(key)
        try:
            found = read_record(path, key, _KERNEL)
        except (OSError, ValueError) as error:
            _log.warning("taskmap ignored a damaged entry of its store: %s: %s", path, error)
            return None
        if found is not None:
            StoreFolder(self.folder).mark_used(path)
        return found

    def add(self, key: str, kernel: TaskKernel) -> None:
        """Keep ``kernel`` under ``key``, if the folder is writable."""
        try:
            write_record(self._path(key), key, _KERNEL, kernel)
        except (UnsupportedError, OSError) as error:
            _log.debug("cannot keep %s: %s", key, error)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
