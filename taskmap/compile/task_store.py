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
from typing import Any

from taskmap.backend.store import key as kernel_source
from taskmap.backend.store.folder import StoreFolder
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.target import Target
from taskmap.ir.util.atomic_write import atomic_write
from taskmap.targets.source_record import Source, record_of, source_from

_log = logging.getLogger(__name__)
_FORMAT = 3


@dataclass(frozen=True, slots=True)
class TaskKernel:
    """The compiled form of a task: its source, and ``note``, the template or rule with its configuration.

    ``instead_of``: the notes of the kernels that it replaces, the latest first, and ``refusal``, the reason why the
    latest was refused (its own, where no other was left).
    """

    source: Source
    note: str
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
            entry = json.loads(path.read_bytes())
            content = entry["content"]
            if entry["key"] != key or entry["check"] != _check(content):
                raise ValueError("the checksum does not match")
            found = _read(content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("taskmap ignored a damaged entry of its store: %s: %s", path, error)
            return None
        StoreFolder(self.folder).mark_used(path)
        return found

    def add(self, key: str, kernel: TaskKernel) -> None:
        """Keep ``kernel`` under ``key``, if the folder is writable."""
        try:
            content = {
                **record_of(kernel.source),
                "note": kernel.note,
                "instead_of": list(kernel.instead_of),
                "refusal": kernel.refusal,
            }
        except UnsupportedError as error:
            _log.debug("cannot keep %s: %s", key, error)
            return
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(path, json.dumps({"key": key, "check": _check(content), "content": content}))
        except OSError as error:
            _log.debug("cannot keep %s: %s", path, error)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _check(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(content: dict[str, Any]) -> TaskKernel:
    return TaskKernel(source_from(content), content["note"], tuple(content["instead_of"]), content["refusal"])
