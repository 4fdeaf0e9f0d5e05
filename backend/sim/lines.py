"""Lines of a kernel's text from places in its code."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_LINE = 0x80000000


def lines_of(sites: Iterable[int], symbol: str, path: Path) -> dict[int, int]:
    """The line of each site: a site names it, or is an offset in the shared object, whose debug information has it.

    0 if it is unknown, as without addr2line.
    """
    known = {site: site & ~_LINE for site in sites if site & _LINE}
    offsets = sorted({site for site in sites if site and not site & _LINE})
    program = shutil.which("addr2line")
    if not offsets or program is None:
        return known
    answer = subprocess.run(
        [program, "-a", "-i", "-e", str(path), *map(hex, offsets)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    at = 0
    for line in answer.stdout.splitlines():
        if line.startswith("0x"):
            at = int(line, 16)
            continue
        # Calls that were inlined come innermost first; the kernel's own line is the one that counts.
        place = re.match(rf"(?:.*/)?{re.escape(symbol)}:(\d+)", line)
        if place and at not in known:
            known[at] = int(place[1])
    return known
