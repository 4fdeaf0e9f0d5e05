"""Command line, tables, checks and JSON, shared by all benchmarks."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.support.conditions import Conditions, StealMeter

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True)
class Check:
    """A figure and its bound."""

    name: str
    value: float
    bound: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """True if the bound is kept; false for NaN, too."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{'met   ' if self.met else 'MISSED'}  {self.name}: {self.value:.3g} (wanted {sign} {self.bound:g})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text columns under a header: the first flush left, the others flush right."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]
    return "\n".join([padded[0], "  ".join("-" * w for w in widths), *padded[1:]])


@dataclass(slots=True)
class Report:
    """A benchmark's findings, gathered while it runs.

    `header` and `rows` are the table as printed; `data` holds the figures behind it, JSON values only.
    """

    name: str
    conditions: Conditions
    header: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    data: list[dict[str, object]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _steal: StealMeter = field(default_factory=StealMeter)

    def __str__(self) -> str:
        parts = [f"{self.name}: {self.conditions}", table(self.header, self.rows)]
        parts += self.notes
        parts += [str(check) for check in self.checks]
        return "\n".join(parts)

    def enter(self, found: dict[str, Any], row: tuple[str, ...], out: Path) -> None:
        """Add one case's results, show its row, and write all so far to ``out``, so that a killed run loses no case."""
        self.data.append(found)
        self.rows.append(row)
        print(" | ".join(row), file=sys.stderr, flush=True)
        self.write(out)

    def write(self, folder: Path) -> Path:
        """Writes `folder`/`name`.json, making the folder where needed, and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        content = {
            "benchmark": self.name,
            "conditions": {**asdict(self.conditions), "steal": self._steal.fraction()},
            "header": self.header,
            "rows": self.rows,
            "notes": self.notes,
            "checks": [{**asdict(check), "met": check.met} for check in self.checks],
            "data": self.data,
        }
        path.write_text(json.dumps(_finite(content), indent=1, allow_nan=False) + "\n")
        return path

    def finish(self, arguments: argparse.Namespace) -> int:
        """Prints, writes, and returns the exit status: 1 if `--check` was given and a bound was missed."""
        print(self, flush=True)
        print(f"written to {self.write(arguments.out)}\n", flush=True)
        return int(arguments.check and not all(check.met for check in self.checks))


def earlier(path: Path, conditions: Conditions) -> dict[str, dict[str, Any]]:
    """The measured and correct cases in a results file of the same conditions, by name."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    mine = {k: v for k, v in asdict(conditions).items() if k != "started"}
    if any(content["conditions"].get(k) != v for k, v in mine.items()):
        return {}
    return {found["name"]: found for found in content["data"] if "speed" in found and found.get("right", True)}


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def parser(description: str, rounds: int, engines: Sequence[str]) -> argparse.ArgumentParser:
    """The options of every benchmark, with this benchmark's defaults."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--seed", type=int, default=0, help="of weights, inputs and the order of windows")
    made.add_argument("--threads", type=int, default=2, help="threads of every engine")
    made.add_argument("--rounds", type=int, default=rounds, help="windows that each engine gets")
    made.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    made.add_argument("--engines", nargs="+", default=list(engines), help="what to measure")
    made.add_argument("--check", action="store_true", help="exit with status 1 when a bound is missed")
    return made


def start(arguments: argparse.Namespace) -> Conditions:
    """Sets the number of threads of this process and notes the conditions."""
    torch.set_num_threads(arguments.threads)
    return Conditions.now(arguments.seed, arguments.threads, arguments.rounds)
