"""The problems that the simulator finds in a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.errors import SimulationError

KINDS = (
    "out of bounds", "misaligned", "uninitialised", "race", "race between blocks", "divergent barrier", "deadlock",
    "incomplete collective", "asynchronous copy", "mbarrier", "missing proxy fence", "wgmma", "misuse", "timeout",
)  # fmt: skip
"""The kinds of problems, in the engine's order."""

Index = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """A thread at a line of the kernel's text (0: unknown); `code` is that line."""

    block: Index
    thread: Index
    line: int
    code: str = ""

    def __str__(self) -> str:
        at = f", line {self.line}: {self.code}" if self.line else ""
        return f"block {_short(self.block)}, thread {_short(self.thread)}{at}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem at one pair of lines; count: the number of its occurrences. other: the other thread involved."""

    kind: str
    text: str
    place: ThreadPlace
    other: ThreadPlace | None = None
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        other = f"\n    other: {self.other}" if self.other else ""
        return f"{self.kind}: {self.text}{times}\n    {self.place}{other}"


def simulation_error(symbol: str, problems: Sequence[Problem], shown: int = 8) -> SimulationError:
    """The problems of a run as an error."""
    text = "\n".join(str(problem) for problem in problems[:shown])
    more = len(problems) - shown
    return SimulationError(
        f"kernel {symbol} does in the simulator what no kernel may do",
        why=text + (f"\nand {more} more" if more > 0 else ""),
    )


def _short(index: Index) -> str:
    return str(index[0]) if not any(index[1:]) else str(index)
