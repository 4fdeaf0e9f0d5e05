"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from taskmap.ir.errors import InputError


def atomic_write(path: Path, text: str, what: str) -> None:
    """Write ``text`` as UTF-8, so that an interruption or a full disk leaves what was there. ``what`` is for messages.

    Raises InputError where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{what} cannot be written to {path}", why=f"{error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
