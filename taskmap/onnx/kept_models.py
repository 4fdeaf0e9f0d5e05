"""Compiled ONNX models kept between runs: `taskmap run model.onnx` reads and compiles the model only once.

A kept model is an archive in the kernel store. Its key is the model's path and the options given; it is used only
while nothing has changed that it was made from: the model's files and taskmap itself, by size and times, including the
time of the inode's last change, which programs cannot set; and likewise the tuning cache. Finding one needs neither
PyTorch nor onnx.

A model in which computed values decide which operators run is a chain of archives: each one's results are the inputs of
the next, which is kept under the path to it, that is, all that has been decided before.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import taskmap
from taskmap.backend.compilers import usable_cpus
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import TaskmapError
from taskmap.ir.util.codec import many, mapping, optional, parsed, whole

Stamp = tuple[int, ...]
"""Of a file: device and inode, times of the last changes of content and inode in ns, size."""
SYMBOL = "model"
SUFFIX = ".taskmap"
_NUMBERS = many(whole(-(1 << 65), 1 << 65))
_FILES = mapping(optional(_NUMBERS))
_VARIABLES = ("TASKMAP_CC", "CC", "TASKMAP_TUNING", "TASKMAP_FEATURES", "OMP_NUM_THREADS")
_SETTLED_SECONDS = 2.0
"""A file that changed more recently than this may change again without getting another time."""


@dataclass(frozen=True, slots=True)
class Request:
    """A model's file, and ``asked``, the options that change how it is compiled.

    cache_dir: the kernel store's folder, None for the default. shapes: the given sizes; a model without a graph for
    all sizes is compiled for these only. path: what has been decided before this part of a model; empty for the first.
    """

    model: Path
    asked: tuple[str, ...]
    cache_dir: Path | None
    shapes: tuple[str, ...] = ()
    path: tuple[str, ...] = ()

    @property
    def for_all_sizes(self) -> Request:
        """The request under which a graph for all sizes is kept."""
        return replace(self, shapes=())

    @property
    def key(self) -> str:
        """The key: 64 hexadecimal digits."""
        host, cpus = detect_host(), usable_cpus()
        said = [os.environ.get(name) for name in _VARIABLES]
        model = (os.path.realpath(self.model), self.asked, self.shapes, self.path)
        parts = [*model, host.isa, host.features, host.model, cpus, said]
        parts.append(_package(taskmap.__version__))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def store(self) -> KernelStore:
        """The store that keeps the model. Raises KernelStoreError."""
        return KernelStore(self.cache_dir, suffix=SUFFIX)


@dataclass(frozen=True, slots=True)
class Kept:
    """The archive kept for a request. deciding: the results, by number, whose values decide which part of the model
    comes next; None for the last part. files: those that it was made from."""

    archive: Path
    request: Request
    deciding: tuple[int, ...] | None = None
    files: Mapping[str, Stamp | None] = field(default_factory=dict)


def candidates(request: Request) -> Iterator[Kept]:
    """The archives that may serve a request: the one kept for its sizes, then the one kept for all sizes."""
    for wanted in dict.fromkeys((request, request.for_all_sizes)):
        if (kept := find(wanted)) is not None:
            yield kept


def find(request: Request) -> Kept | None:
    """The archive kept for a request; None if there is none, or if anything it was made from has changed."""
    try:
        found = request.store().kept_file(request.key, SYMBOL)
    except (TaskmapError, OSError):
        return None
    if found is None:
        return None
    path, facts = found
    try:
        files = _FILES.read(parsed(facts["files"], "the files"))
        deciding = optional(_NUMBERS).read(parsed(facts.get("deciding", "null"), "the deciding results"))
    except (KeyError, ValueError):
        return None
    unchanged = all(stamp(Path(name)) == was for name, was in files.items())
    return Kept(path, request, deciding, files) if unchanged else None


def facts_of(files: Mapping[str, Stamp | None], deciding: tuple[int, ...] | None) -> dict[str, str]:
    """The facts of a kept archive from which `find` makes its `Kept`."""
    facts = {"files": json.dumps(_FILES.write(dict(files)))}
    return facts if deciding is None else {**facts, "deciding": json.dumps(deciding)}


def stamps(files: Iterable[Path]) -> dict[str, Stamp | None] | None:
    """The stamps of files; None if one has changed so recently that it may change again undetected."""
    found = {str(file): stamp(file) for file in files}
    newest = max((max(s[2:4]) for s in found.values() if s is not None), default=0)
    return None if time.time_ns() - newest < _SETTLED_SECONDS * 1e9 else found


def stamp(file: Path) -> Stamp | None:
    """The stamp of a file; None if there is none."""
    try:
        return stamp_of(os.stat(file))
    except OSError:
        return None


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp of a file with this status."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


@lru_cache(maxsize=1)
def _package(version: str) -> str:
    """The identity of taskmap itself: another version, or an edited file, counts as another compiler."""
    digest = hashlib.sha256(version.encode())
    for line in sorted(_sources(taskmap.__path__[0])):
        digest.update(line.encode())
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _sources(entry.path)
            elif entry.name.endswith((".py", ".c", ".h")):
                status = entry.stat()
                yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"
