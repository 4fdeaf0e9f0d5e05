"""Records that are kept beside the kernel store: JSON files, each with its key and a checksum of its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from taskmap.ir.util.atomic_write import atomic_write
from taskmap.ir.util.codec import Codec, parsed

T = TypeVar("T")


def read_record(path: Path, key: str, codec: Codec[T]) -> T | None:
    """The content of the record ``key``; None if there is no file. Raises ValueError for a damaged file, and
    OSError."""
    try:
        record = parsed(path.read_bytes(), "the record")
    except FileNotFoundError:
        return None
    content = record.field("content")
    if record.field("key").value != key or record.field("check").value != _checksum(content.value):
        raise ValueError("the checksum does not match")
    return codec.read(content)


def write_record(path: Path, key: str, codec: Codec[T], value: T, facts: Mapping[str, Any] | None = None) -> None:
    """Keep ``value`` as the record ``key``, with ``facts`` for human readers. Raises OSError."""
    content = codec.write(value)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(path, json.dumps({"key": key, "check": _checksum(content), "content": content, **(facts or {})}))


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
