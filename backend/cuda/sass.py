"""The assembly of a compiled kernel, for looking at and for tests of its structure."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def sass(image: bytes) -> str:
    """The assembly of a CUBIN. Raises CompilerNotFoundError without nvdisasm, CompilerFailedError for no CUBIN."""
    with NamedTemporaryFile(prefix="taskmap-", suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run(
            [_disassembler(), "--no-dataflow", file.name], capture_output=True, text=True, timeout=120, check=False
        )
    if done.returncode != 0:
        raise CompilerFailedError("nvdisasm refused a kernel", why=done.stderr.strip())
    return done.stdout


def instructions(assembly: str) -> Counter[str]:
    """How often each instruction stands in the text, under its whole name: LDG.E.128, HMMA.16816.F32, ..."""
    return Counter(match.group(1) for match in _INSTRUCTION.finditer(assembly))


def count(found: Counter[str], *words: str) -> int:
    """How many instructions have all these words in their names, as count(found, "LDG", "128")."""
    return sum(n for name, n in found.items() if set(words) <= set(name.split(".")))


@lru_cache(maxsize=1)
def _disassembler() -> str:
    for folder in (None, *_folders()):
        found = shutil.which("nvdisasm", path=None if folder is None else str(folder))
        if found is not None:
            return found
    raise CompilerNotFoundError("nvdisasm was not found", hint="Install it: pip install nvidia-cuda-nvdisasm.")


def _folders() -> Iterator[Path]:
    """Where NVIDIA's wheels put programs, and where the toolkit does."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(place).glob("cu*/bin"))
    yield Path("/usr/local/cuda/bin")
