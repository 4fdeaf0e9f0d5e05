"""Tries C compilers with the kernels of a compiler's trial (taskmap.trust), and writes the result for
each.

python -m benchmarks.compilers [COMMAND ...] [--isa ISA ...] [--out FOLDER]

A COMMAND is as in TASKMAP_CC ('clang-16', 'zig cc -target x86_64-linux-gnu'). Without any, all of gcc-*, clang-* and cc
in PATH are tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.support.conditions import Conditions
from benchmarks.support.report import RESULTS
from taskmap.backend.cpu.host import ISAS, detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.ir.errors import TaskmapError
from taskmap.ir.target import cpu_target
from taskmap.trust.ladder import climb
from taskmap.trust.verdict import UntriedError, verdict_of

_NAMES = re.compile(r"(?:gcc|clang)-\d+|cc")


@dataclass(frozen=True, slots=True)
class Row:
    """A compiler with one instruction set. integers, floats: flags for kernels of these kinds, None
    if it is refused. halves: it has f16. seconds: of the trial; processor_seconds: of all its processes."""

    command: str
    compiler: str
    isa: str
    verdict: str
    integers: str | None
    floats: str | None
    halves: bool
    wrong: tuple[str, ...]
    seconds: float
    processor_seconds: float


def compilers() -> Iterator[str]:
    """The commands in PATH with compilers' names."""
    found = {
        name
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if _NAMES.fullmatch(name)
    }
    yield from sorted(found, key=lambda name: (name.partition("-")[0], int(name.partition("-")[2] or 0)))


def tried(command: str, isa: str) -> Row:
    """The results for one compiler."""
    before, started = _processor_seconds(), time.perf_counter()
    identity, flags, halves = "", None, False
    wrong: tuple[str, ...] = ()
    try:
        toolchain = find_toolchain(isa=isa, environ={**os.environ, "TASKMAP_CC": command})
        identity = toolchain.identity
        verdict = verdict_of(climb(toolchain, cpu_target(isa, 2)), 0.0)
        flags, wrong, halves = verdict.safer, verdict.wrong, verdict.halves
        said = "refused" if flags is None else "right" if not wrong else "right with other flags"
    except UntriedError as error:
        said = f"compiles nothing: {error}"
    except TaskmapError as error:
        said = error.what
    return Row(
        command=command,
        compiler=identity,
        isa=isa,
        verdict=said,
        integers=None if flags is None else " ".join(flags.integers),
        floats=None if flags is None else " ".join(flags.floats),
        halves=halves,
        wrong=wrong,
        seconds=round(time.perf_counter() - started, 2),
        processor_seconds=round(_processor_seconds() - before, 2),
    )


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if no compiler was tried."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = [isa for isa in ISAS if detect_host().supports(isa)]
    cli.add_argument("commands", nargs="*", metavar="COMMAND")
    cli.add_argument("--isa", nargs="+", choices=here, default=here)
    cli.add_argument("--out", type=Path, default=RESULTS)
    arguments = cli.parse_args(argv)
    rows = []
    print(f"{'command':<28}{'isa':<9}{'verdict':<26}{'seconds':>8}{'of CPU':>8}  compiler")
    for command in arguments.commands or compilers():
        for isa in arguments.isa:
            row = tried(command, isa)
            rows.append(row)
            name = os.path.basename(row.command.split()[0])
            took = f"{row.seconds:8.1f}{row.processor_seconds:8.1f}"
            print(f"{name:<28}{row.isa:<9}{row.verdict[:25]:<26}{took}  {row.compiler}")
            for flags, kind in ((row.integers, "integers"), (row.floats, "floats")):
                if flags:
                    print(f"{'':<37}{kind}: {flags}")
            for line in row.wrong:
                print(f"{'':<37}{line}", flush=True)
            _write(rows, arguments.out)
    return int(not rows)


def _write(rows: Sequence[Row], folder: Path) -> None:
    """Write the results so far, because a run may take minutes."""
    found = {"conditions": asdict(Conditions.now(0, 2, 1)), "compilers": [_record(row) for row in rows]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compilers.json").write_text(json.dumps(found, indent=1) + "\n")


def _record(row: Row) -> dict[str, object]:
    """A row as it is written: the program's name without its folder, which differs between machines."""
    program, *rest = row.command.split()
    return {**asdict(row), "command": " ".join([os.path.basename(program), *rest])}


if __name__ == "__main__":
    sys.exit(main())
