"""A compilation for an archive: a session with access to the binaries that it produced."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from taskmap.backend.store.inventory import stored_objects
from taskmap.compile.session import Session
from taskmap.ir.features import in_order, read_isa_text

Binary = tuple[bytes, tuple[str, ...]]
"""The content of a file, and those of its kernels that an archive needs."""


@dataclass(frozen=True, slots=True)
class ArchiveSession:
    """A session and access to its output: ``binaries`` gives those with given symbols, ``features`` the CPU features
    that these need beyond the target's instruction set. ``suffix``: of their files."""

    session: Session
    suffix: str
    binaries: Callable[[Collection[str]], list[Binary]]
    features: Callable[[Collection[str]], tuple[str, ...]]


def features_used(store: Path, needed: Collection[str]) -> tuple[str, ...]:
    """The CPU features that the kernels of these symbols in ``store`` need beyond their instruction set."""
    symbols = frozenset(needed)
    used = (read_isa_text(o.isa)[1] for o in stored_objects(store) if not symbols.isdisjoint(o.symbols))
    return in_order(name for names in used for name in names)
