"""Checks and measures everything on a GPU, in less than nine minutes, without a network: `make gpu`.

python -m benchmarks.gpu [--out FOLDER] [--minutes 8.4] [--only PART[/CASE] ...] [--resume] [--store FOLDER]

First a ladder, in under two minutes, one process a rung; then figures; then, beside each other, corners, instructions,
the runtime and the test suite's kernels. Each part is a process of its own. One that crashes, hangs or loses the GPU is
begun again behind the case that it was at. What the time did not suffice for is named in the part's JSON, and --resume
goes on with that. Without a GPU nothing is done. PyTorch with CUDA, numpy and cuda-bindings suffice; where pytest and
hypothesis are installed, tests of the suite run on the GPU, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

from benchmarks.gpu.parts import (
    CASE_SECONDS,
    LADDER_SECONDS,
    MODULE,
    ROOT,
    RUNG_SECONDS,
    Part,
    ladder,
    parts,
    rung_seconds,
)  # fmt: skip
from benchmarks.gpu.processes.running import LEAST_SECONDS, Limits, Outcome, environment, run
from benchmarks.gpu.record import failures

ARCHIVE = "gpu-results.tar.gz"
STORE = ROOT / "gpu-kernels"
"""The folder into which `make gpu-kernels` compiles, and in which `make gpu` looks."""


def gpu_missing() -> str:
    """The reason why nothing can run; None if it can."""
    try:
        import torch  # noqa: PLC0415  the message below is for machines without it
    except ImportError as error:
        return f"PyTorch is not installed: {error}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    return ""


Chosen = tuple[Part, tuple[str, ...]]
"""A part, and the patterns of its cases."""


def wanted(every: list[Part], only: list[str] | None) -> list[Chosen]:
    """The parts that ``only`` names, as PART or PART/CASE with * and ?, each with the patterns of its cases."""
    if not only:
        return [(part, ()) for part in every]
    found: list[Chosen] = []
    for part in every:
        place = "ladder" if part.record == "gpu_ladder" else part.name
        matching = [cases for name, _, cases in (o.partition("/") for o in only) if fnmatchcase(place, name)]
        if part.record == "gpu_ladder":
            rung = part.name.removeprefix("ladder: ")
            if any(not cases or fnmatchcase(rung, cases) for cases in matching):
                found.append((part, ()))
        elif matching:
            found.append((part, () if "" in matching else tuple(matching)))
    return found


def together(chosen: list[Chosen]) -> list[list[Chosen]]:
    """The parts in groups that run at the same time: those beside each other that measure nothing."""
    return [
        group
        for timed, some in groupby(chosen, key=lambda one: one[0].timed)
        for group in ([[one] for one in some] if timed else [list(some)])
    ]


def _share(group: list[Chosen]) -> float:
    return sum(part.share for part, _ in group)


def main(argv: list[str] | None = None) -> int:
    """The command: 0 when all parts passed, or there is no GPU; 1 otherwise."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out", type=Path, default=ROOT / "gpu-results", help="the folder of the JSON files")
    cli.add_argument("--minutes", type=float, default=8.4, help="of the whole run")
    cli.add_argument("--only", nargs="+", metavar="PART[/CASE]", help="parts, or cases of them; * and ? stand for any")
    cli.add_argument("--resume", action="store_true", help="go on with what is in the folder, of the same code")
    cli.add_argument("--store", type=Path, default=STORE, help="kernels that make gpu-kernels has compiled")
    cli.add_argument("--case-seconds", type=float, help="a case that takes longer hangs, in every part")
    arguments = cli.parse_args(argv)
    every = [*ladder(), *parts()]
    chosen = wanted(every, arguments.only)
    if not chosen:
        names = ", ".join(["ladder", *(part.name for part in every if part.record != "gpu_ladder")])
        cli.error(f"--only {' '.join(arguments.only)} names nothing: the parts are {names}")
    missing = gpu_missing()
    if missing:
        print(f"nothing is checked on a GPU: {missing}.")
        return 0
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.resume:
        (out / "gpu_ladder.json").unlink(missing_ok=True)
    arguments.store.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(PermissionError):  # a copy may be open to a group, which a store refuses
        arguments.store.chmod(0o700)
    end = time.perf_counter() + 60 * arguments.minutes
    ladder_end = time.perf_counter() + LADDER_SECONDS
    outcomes: list[Outcome] = []
    groups = together(chosen)
    for number, group in enumerate(groups):
        left = end - time.perf_counter()
        # What earlier parts have left over belongs to the later ones.
        seconds = left * _share(group) / sum(_share(later) for later in groups[number:])
        rungs = sum(part.most < 1e9 for later in groups[number + 1 :] for part, _ in later)

        def begun(one: Chosen, left: float = left, seconds: float = seconds, rungs: int = rungs) -> Outcome:
            part, cases = one
            if part.lacks:
                print(f"\n== {part.name} is skipped: {', '.join(part.lacks)} is not installed", flush=True)
                return Outcome(part.name, "skipped", 0.0, 0)
            if left <= LEAST_SECONDS:
                return Outcome(part.name, "out of time", 0.0, 0)
            case_seconds = arguments.case_seconds
            if is_rung := part.most < 1e9:
                least = rung_seconds(ladder_end - time.perf_counter(), rungs)
                part = replace(part, most=case_seconds + RUNG_SECONDS if case_seconds else least)
                case_seconds = case_seconds or part.most - (RUNG_SECONDS - CASE_SECONDS)
            limits = Limits(out, str(arguments.store), arguments.resume, cases, case_seconds)
            return run(part, min(left, part.most) if is_rung else seconds, limits)

        with ThreadPoolExecutor(len(group)) as pool:
            outcomes += pool.map(begun, group)
        _write(out, outcomes)
    _summary(out, outcomes, chosen)
    return int(any(outcome.status not in ("passed", "skipped") for outcome in outcomes))


def _write(out: Path, outcomes: list[Outcome]) -> None:
    (out / "gpu.json").write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n", encoding="utf-8")


def _archive(out: Path) -> None:
    with tarfile.open(out / ARCHIVE, "w:gz") as archive:
        for path in sorted(out.glob("gpu*")):
            if path.suffix in (".json", ".txt"):
                archive.add(path, path.name)


def _summary(out: Path, outcomes: list[Outcome], chosen: list[Chosen]) -> None:
    _archive(out)  # the fit takes a while, and the machine may not be there for it
    print("\nthe cost model", flush=True)
    subprocess.run([*MODULE, "benchmarks.gpu.refit", "--out", str(out)], cwd=ROOT, env=environment(), check=False)
    print("\nsummary")
    for outcome in outcomes:
        starts = f"  {outcome.starts} starts" if outcome.starts > 1 else ""
        print(f"  {outcome.name:30}{outcome.status:12}{outcome.seconds:6.0f} s{starts}")
        for end in outcome.ends:
            print(f"      {end}")
    for record in dict.fromkeys(part.record for part, _ in chosen if part.record):
        for row in failures(out / f"{record}.json"):
            why = str(row.get("failed", f"relative error {row.get('relative_error', 'unknown')}")).splitlines()[0]
            print(f"  {record.removeprefix('gpu_')}/{row['name']}: {why[:200]}")
    _archive(out)
    print(f"all results: {out / ARCHIVE}")


if __name__ == "__main__":
    sys.exit(main())
