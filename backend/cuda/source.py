"""The source of one CUDA kernel, and the device code that it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from taskmap.backend.cuda.products import is_made, made_family
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.ir.nodes import Dim, Var

ALLOWANCES = ("spills", "serialized")
"""Slow behaviour that a kernel may be allowed: spilled registers, serialised wgmma."""

AFTER_PREVIOUS_GRID = "tm_after_previous_grid()"
"""The call with which blocks that may start before the grid before theirs has ended wait for it."""

_SYMBOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_COMMENT = re.compile(r"[ \t]*//.*")
_DEVICE = Path(__file__).parent / "device"


@dataclass(frozen=True, slots=True)
class CudaSource:
    """CUDA C++ of one kernel.

    symbol: the name of its ``extern "C" __global__`` function. text: the function alone. families: the files of device/
    that it needs, in order. needs_error: it takes an ``int *`` last, which it sets if an index is out of range. grid:
    blocks, up to three sizes over ``dims``, its symbolic sizes in the order of its parameters. threads: threads of a
    block. shared_bytes: dynamic shared memory of a block. cluster: blocks of a cluster. isa: the architecture that it
    was generated for. allow: those of ALLOWANCES that are not an error. maps: the tensor maps that it takes, after its
    sizes and before the error flag. workspace, counters: bytes of each memory private to a launch, whose addresses
    follow those of the buffers; counters are 0 before every launch, and after it.
    """

    symbol: str
    text: str
    families: tuple[str, ...]
    needs_error: bool
    grid: tuple[Dim, ...]
    threads: int
    shared_bytes: int
    dims: tuple[Var, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    isa: str = ""
    allow: tuple[str, ...] = ()
    maps: tuple[MapParameter, ...] = ()
    workspace: tuple[int, ...] = ()
    counters: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not _SYMBOL.fullmatch(self.symbol):
            raise ValueError(f"not a C identifier: {self.symbol!r}")

    @property
    def waits(self) -> bool:
        """True if the kernel may start before the grid before it has ended, because it waits for that itself."""
        return AFTER_PREVIOUS_GRID in self.text

    @property
    def code(self) -> str:
        """``text`` without comments, which name the Python lines that its lines come from."""
        return without_comments(self.text)

    def is_same_kernel(self, other: CudaSource) -> bool:
        """True if the two differ in comments at most."""
        return replace(self, text=self.code) == replace(other, text=other.code)

    def prelude(self) -> str:
        """The device code that ``text`` needs."""
        return prelude(self.families)

    def unit(self) -> str:
        """The whole translation unit: CUDA C++ that includes no header."""
        return f"{self.prelude()}\n{self.text}"


def without_comments(text: str) -> str:
    """A generated kernel without its line comments. It has no other comments, and no strings."""
    lines = (_COMMENT.sub("", line) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


@lru_cache(maxsize=64)
def prelude(families: tuple[str, ...]) -> str:
    """The text of these families, in order: files of device/, or generated from the instruction table."""
    return "\n".join(_family(name) for name in families)


def _family(name: str) -> str:
    return made_family(name) if is_made(name) else (_DEVICE / f"{name}.cuh").read_text(encoding="utf-8")
