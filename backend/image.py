"""Loading a shared object from memory: the verified bytes are the loaded ones, and no copy stays on a disk."""

from __future__ import annotations

import os
from pathlib import Path

from taskmap.backend.library import Library, load_library
from taskmap.backend.store.scratch import Scratch


def load_image(content: bytes | memoryview, *, visible: bool = False) -> Library:
    """Loads a shared object; see load_library. Raises OSError with the loader's reason."""
    folder = Path("/proc/self/fd")
    try:
        descriptor = os.memfd_create("taskmap-kernels", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # a system without such files, or one that forbids to execute them
        return _from_disk(content, visible)
    if not folder.exists():
        os.close(descriptor)
        return _from_disk(content, visible)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    # Never closed: the loader knows libraries by name, and another file would get this one's.
    return load_library(folder / str(descriptor), visible=visible)


def _from_disk(content: bytes | memoryview, visible: bool) -> Library:
    with Scratch() as folder:
        path = folder / "kernels.so"
        path.write_bytes(content)
        return load_library(path, visible=visible)
