"""The assembly of a compiled kernel, for reading and for tests of its structure."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError, InputError

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", re.MULTILINE)
_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA(?:\.\S+)? (?:\S+, )?`\((\.L_x_\d+)\)")


def sass(image: bytes) -> str:
    """The assembly of a CUBIN. Raises CompilerNotFoundError without nvdisasm, CompilerFailedError for other content."""
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
    """The count of each instruction in the text, by its full name: LDG.E.128, HMMA.16816.F32, ..."""
    return Counter(match.group(1) for match in _INSTRUCTION.finditer(assembly))


def count(found: Counter[str], *words: str) -> int:
    """The number of instructions whose names contain all these words, as count(found, "LDG", "128")."""
    return sum(n for name, n in found.items() if set(words) <= set(name.split(".")))


def listing(assembly: str) -> list[str]:
    """The instructions of the text in order, each as written, with its guard and operands."""
    return [match.group(1) for match in _LINE.finditer(assembly)]


@dataclass(frozen=True, slots=True)
class SassLoop:
    """The instructions of a loop from its first to its branch back, in text order.

    skips: its forward branches, as the index of each and of its target. Code that is out of line, at the end of the
    kernel, such as waits, does not belong to the loop.
    """

    code: tuple[str, ...]
    skips: tuple[tuple[int, int], ...]

    def places(self, word: str) -> list[int]:
        """The indices of the instructions whose text contains ``word``."""
        return [n for n, text in enumerate(self.code) if word in text]

    @property
    def shortest(self) -> int:
        """The number of instructions of the shortest iteration, which takes the branch over most of them."""
        return len(self.code) - max((to - at - 1 for at, to in self.skips), default=0)


def loops(assembly: str) -> list[SassLoop]:
    """Every loop of a kernel's text, inner and outer, in the order of their ends."""
    places: dict[str, int] = {}
    code: list[str] = []
    branches: list[tuple[int, str]] = []
    for line in assembly.splitlines():
        label, instruction = _LABEL.match(line), _LINE.match(line)
        if label is not None:
            places[label.group(1)] = len(code)
        if instruction is None:
            continue
        branch = _BRANCH.search(instruction.group(1))
        if branch is not None:
            branches.append((len(code), branch.group(1)))
        code.append(instruction.group(1))
    every = [(at, places[name]) for at, name in branches if name in places]
    found = []
    for end, first in every:
        if first <= end:
            skips = tuple((at - first, to - first) for at, to in every if first <= at < to <= end)
            found.append(SassLoop(tuple(code[first : end + 1]), skips))
    return found


def loop_with(assembly: str, *words: str) -> SassLoop:
    """The shortest loop that contains each of the words. Raises InputError if there is none."""
    fitting = [loop for loop in loops(assembly) if all(loop.places(w) for w in words)]
    if not fitting:
        raise InputError(f"no loop of the kernel has {', '.join(words)}")
    return min(fitting, key=lambda loop: len(loop.code))


def can_disassemble() -> bool:
    """True if there is an nvdisasm."""
    try:
        return bool(_disassembler())
    except CompilerNotFoundError:
        return False


@lru_cache(maxsize=1)
def _disassembler() -> str:
    for folder in (None, *_folders()):
        found = shutil.which("nvdisasm", path=None if folder is None else str(folder))
        if found is not None:
            return found
    raise CompilerNotFoundError("nvdisasm was not found", hint="Install it: pip install nvidia-cuda-nvdisasm.")


def _folders() -> Iterator[Path]:
    """The folders of programs in NVIDIA's wheels, and in the toolkit."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(place).glob("cu*/bin"))
    yield Path("/usr/local/cuda/bin")
