"""The parts of `make gpu` in order: the ladder, figures, then corners, instructions, the runtime and the test suite."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE: tuple[str, ...] = (sys.executable, "-m")
"""The command that runs a module; its name follows."""

LADDER_SECONDS = 120.0
"""The time limit of all rungs together."""
RUNG_SECONDS = 20.0
CASE_SECONDS = 16.0
"""The rest of a rung's time after PyTorch's import, less the time to write where it hangs."""
SHORT_RUNG_SECONDS = 8.0
"""A healthy rung takes less, with its kernels compiled beforehand; hanging ones never take this time from others."""
RUNGS = ("pointwise kernel", "mma product", "TMA copy", "wgmma without TMA", "Hopper product 1024", "product 8192",
         "attention", "split-K", "small model")  # fmt: skip
"""Named here, too, so that the process that starts the parts imports no PyTorch."""


@dataclass(frozen=True, slots=True)
class Part:
    """A command with its share of the time, which takes --seconds, --out, --resume, --only and --case-seconds.
    record: the name of its JSON file. needs: modules that it imports. most: seconds that it gets at most. timed: it
    measures, so nothing may run beside it.
    """

    name: str
    command: tuple[str, ...]
    share: float
    record: str
    needs: tuple[str, ...] = ()
    most: float = 1e9
    timed: bool = True

    @property
    def lacks(self) -> list[str]:
        """The required modules that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


def ladder() -> list[Part]:
    """One part per rung."""
    module = (*MODULE, "benchmarks.gpu.ladder", "--rung")
    return [Part(f"ladder: {rung}", (*module, rung), 0.02, "gpu_ladder", most=RUNG_SECONDS) for rung in RUNGS]


def rung_seconds(left: float, later: int) -> float:
    """The time limit of a rung when the ladder has ``left`` seconds and ``later`` more rungs."""
    return min(RUNG_SECONDS, max(SHORT_RUNG_SECONDS, left - SHORT_RUNG_SECONDS * later))


def parts() -> list[Part]:
    """The parts after the ladder."""

    def section(name: str, share: float) -> Part:
        return Part(name, (*MODULE, "benchmarks.gpu.kernels", "--section", name), share, f"gpu_{name}")

    def module(name: str, share: float, *, timed: bool = False) -> Part:
        return Part(name, (*MODULE, f"benchmarks.gpu.{name}"), share, f"gpu_{name}", timed=timed)

    return [
        section("matmul", 0.15),
        section("attention", 0.10),
        section("memory", 0.07),
        section("decode", 0.06),
        section("convolution", 0.08),
        section("strategies", 0.05),
        module("networks", 0.17, timed=True),
        module("corners", 0.12),
        module("instructions", 0.10),
        module("runtime", 0.05),
        Part(
            "kernels",
            (*MODULE, "benchmarks.gpu.suite"),
            0.05,
            "gpu_kernels",
            needs=("pytest", "hypothesis"),
            timed=False,
        ),
    ]
