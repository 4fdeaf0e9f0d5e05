"""Every GPU template at every corner of its space, on every type: compiled for sm_80 and sm_90a, run in the simulator
late and early and in several orders of threads, compared with float64. No GPU is needed.

python -m benchmarks.cuda_corners [--template product] [--part 0/4]
python -m benchmarks.cuda_corners --merge part0/cuda_corners.json part1/cuda_corners.json ...
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from benchmarks.support.conditions import Conditions
from benchmarks.support.report import RESULTS, Check, Report
from taskmap.ir.errors import TaskmapError
from tests.cuda_proof.proving import ARCHITECTURES, Proof, corners
from tests.cuda_proof.subjects import subjects


@dataclass(slots=True)
class Tally:
    """The results for one template."""

    subjects: int = 0
    corners: int = 0
    compiled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ARCHITECTURES, 0))
    runs: int = 0
    worst: float = 0.0
    spilled: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main(argv: list[str] | None = None) -> int:
    """The command; 1 if a corner failed or spills registers."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--template", nargs="*", help="only these")
    cli.add_argument("--part", default="0/1", help="one part of so many: each takes every so many-th subject")
    cli.add_argument("--seconds", type=float, default=float("inf"), help="begin no subject later than this")
    cli.add_argument("--threads", type=int, default=2, help="compilations at once")
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    cli.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="run nothing: join the results of parts")
    arguments = cli.parse_args(argv)
    if arguments.merge:
        tallies = merged(arguments.merge)
        return written(tallies, sum(1 for _ in subjects()), arguments.threads, arguments.out)
    part, parts = map(int, arguments.part.split("/"))
    wanted = [s for s in subjects() if not arguments.template or s.template in arguments.template][part::parts]
    proof = Proof(arguments.threads)
    tallies = {}
    begun = time.perf_counter()
    for subject in tqdm(wanted, disable=None):
        if time.perf_counter() - begun > arguments.seconds:
            continue
        tally = tallies.setdefault(subject.template, Tally())
        started = time.perf_counter()
        tally.subjects += 1
        try:
            every = corners(subject)
            proof.prove(every)
        except TaskmapError as error:
            tally.failures.append(f"{subject}: {error}")
            continue
        finally:
            tally.seconds += time.perf_counter() - started
        for c in every:
            tally.corners += 1
            tally.runs += c.runs
            tally.worst = max(tally.worst, c.error)
            tally.spilled += [f"{c} for {isa}: {why.splitlines()[2].strip()}" for isa, why in c.spilled.items()]
            tally.failures += [f"{c}: {f}" for f in c.failures]
            for isa in c.binaries:
                tally.compiled[isa] += 1
    proof.close()
    return written(tallies, len(wanted), arguments.threads, arguments.out)


def merged(files: Sequence[Path]) -> dict[str, Tally]:
    """The sum of the results of other runs, on different subjects."""
    tallies: dict[str, Tally] = {}
    for file in files:
        record = json.loads(file.read_text(encoding="utf-8"))
        for found, row in zip(record["data"], record["rows"], strict=True):
            tally = tallies.setdefault(found["template"], Tally())
            tally.subjects += found["subjects"]
            tally.corners += found["kernels"]
            tally.runs += found["runs"]
            tally.worst = max(tally.worst, found["error/allowed"])
            tally.spilled += found["spilled"]
            tally.failures += found["failures"]
            tally.seconds += float(row[record["header"].index("seconds")])
            for isa, count in found["compiled"].items():
                tally.compiled[isa] += count
    return tallies


def written(tallies: Mapping[str, Tally], wanted: int, threads: int, out: Path) -> int:
    """Print and write the results of ``wanted`` subjects; 1 if one failed or spills registers."""
    header = (
        "template", "subjects", "kernels", *ARCHITECTURES, "spill", "runs", "error/allowed", "failures", "seconds",
    )  # fmt: skip
    report = Report("cuda_corners", Conditions.now(0, threads, 1), header)
    for template, t in tallies.items():
        counts = (t.subjects, t.corners, *(t.compiled[isa] for isa in ARCHITECTURES), len(t.spilled), t.runs)
        report.rows.append((
            template, *map(str, counts), f"{t.worst:.2f}", str(len(t.failures)), f"{t.seconds:.0f}"
        ))  # fmt: skip
        report.data.append({
            "template": template, "subjects": t.subjects, "kernels": t.corners, "compiled": t.compiled, "runs": t.runs,
            "error/allowed": t.worst, "spilled": t.spilled, "failures": t.failures,
        })  # fmt: skip
        report.checks.append(Check(f"{template}: failures", len(t.failures), 0))
        report.checks.append(Check(f"{template}: spills", len(t.spilled), 0))
    left_out = wanted - sum(t.subjects for t in tallies.values())
    if left_out:
        report.notes.append(f"{left_out} of {wanted} subjects were left out, for want of time")
    report.notes += [f for t in tallies.values() for f in t.failures]
    print(report)
    print(f"written to {report.write(out)}")
    return int(any(t.failures or t.spilled for t in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
