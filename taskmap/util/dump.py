"""Dumps for reading: every stage of a compilation as a numbered file."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from taskmap.ir.errors import InvalidOptionError


@dataclass(slots=True)
class Dump:
    """Writes stages into ``folder``; without a folder it does nothing.

    Raises InvalidOptionError when the folder cannot be written.
    """

    folder: Path | None
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def write(self, name: str, text: object) -> None:
        """Write ``text`` as the next file, named ``name``; only letters, digits, dot, dash and underscore are kept."""
        if self.folder is None:
            return
        path = self.folder / f"{next(self._count):02d}_{re.sub(r'[^a-zA-Z0-9._-]', '_', name)[:120]}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text).rstrip("\n") + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidOptionError(
                "cannot write to the option 'dump_dir'", where=str(path), why=f"{error.strerror or error}."
            ) from error

    @property
    def wanted(self) -> bool:
        """True if stages are written; callers skip building text otherwise."""
        return self.folder is not None


def new_dump(dump_dir: str | None, kind: str) -> Dump:
    """The dump of one graph: a new folder <dump_dir>/<number>_<kind>; without a dump_dir, a dump that does nothing."""
    if dump_dir is None:
        return Dump(None)
    root = Path(dump_dir)
    for number in itertools.count():
        folder = root / f"{number:03d}_{kind}"
        if any(root.glob(f"{number:03d}_*")):
            continue
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InvalidOptionError(
                "cannot write to the option 'dump_dir'", where=os.fspath(folder), why=f"{error.strerror or error}."
            ) from error
        return Dump(folder)
    raise AssertionError("unreachable")
