"""The options of every part of `make gpu`, and the record that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Record
from benchmarks.gpu.watchdog import CASE_SECONDS, START_SECONDS, Watchdog, hang_file
from taskmap.util.metrics import COUNTERS


def part_options(
    doc: str | None, seconds: float, what: str, case_seconds: float = CASE_SECONDS
) -> argparse.ArgumentParser:
    """A parser with the time after which no new ``what`` is begun, the folder of results, and whether to resume there.

    doc: the part's own description, shown unchanged. case_seconds: the time limit of one case.
    """
    cli = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seconds", type=float, default=seconds, help=f"after these no new {what} is begun")
    cli.add_argument("--out", type=Path, default=Path("gpu-results"))
    cli.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    cli.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help=f"names of what to do: {what}s")
    cli.add_argument("--case-seconds", type=float, default=case_seconds, help=f"a {what} that takes longer hangs")
    return cli


def _kernels() -> tuple[int, int]:
    counts = COUNTERS.kernels.snapshot()
    return counts.kernels_compiled, counts.kernels_found


def record_of(arguments: argparse.Namespace, name: str, conditions: Callable[[], dict[str, Any]]) -> Record:
    """The record ``name`` of a part, whose process is watched from now on. ``conditions`` queries the GPU."""
    path = arguments.out / f"{name}.json"
    watchdog = Watchdog(hang_file(path), arguments.case_seconds)
    watchdog.arm(max(START_SECONDS, arguments.case_seconds))
    record = Record.begun(path, conditions(), resume=arguments.resume)
    record.kernels = _kernels
    record.only, record.watchdog = arguments.only, watchdog
    watchdog.disarm()
    return record
