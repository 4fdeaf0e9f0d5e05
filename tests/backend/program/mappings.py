"""The memory mappings of this process, as Linux describes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_of(address: int) -> set[str]:
    """The two-letter flags of the mapping at ``address``: "sh" shared, "hg" huge pages wanted, and others. The test is
    skipped where the system does not tell."""
    if sys.platform != "linux" or not _HUGE.exists():
        pytest.skip("mappings are read from Linux with huge pages")
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):
            first, _, end = word.partition("-")
            inside = int(first, 16) <= address < int(end, 16)
        elif inside and word == "VmFlags:":
            return set(rest.split())
    raise AssertionError(f"no mapping at {address:#x}")
