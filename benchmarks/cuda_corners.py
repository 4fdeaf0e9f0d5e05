"""Every GPU template at every corner of its space, on every type: compiled for sm_80 and sm_90a, run in the simulator
late and early and in several orders of threads, compared with float64. No GPU is needed.

python -m benchmarks.cuda_corners [--template product] [--part 0/4]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from benchmarks.conditions import Conditions
from benchmarks.report import RESULTS, Check, Report
from taskmap.ir.errors import TaskmapError
from tests.cuda_proof.proving import ARCHITECTURES, Proof, corners
from tests.cuda_proof.subjects import subjects


@dataclass(slots=True)
class Tally:
    """What came of one template."""

    subjects: int = 0
    corners: int = 0
    compiled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ARCHITECTURES, 0))
    runs: int = 0
    worst: float = 0.0
    spilled: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main(argv: list[str] | None = None) -> int:
    """The command; 1 where a corner failed."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--template", nargs="*", help="only these")
    cli.add_argument("--part", default="0/1", help="one part of so many: each takes every so many-th subject")
    cli.add_argument("--seconds", type=float, default=float("inf"), help="begin no subject later than this")
    cli.add_argument("--threads", type=int, default=2, help="compilations at once")
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    arguments = cli.parse_args(argv)
    part, parts = map(int, arguments.part.split("/"))
    wanted = [s for s in subjects() if not arguments.template or s.template in arguments.template][part::parts]
    proof = Proof(arguments.threads)
    tallies: dict[str, Tally] = {}
    begun, left_out = time.perf_counter(), 0
    for subject in tqdm(wanted, disable=None):
        if time.perf_counter() - begun > arguments.seconds:
            left_out += 1
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
    header = (
        "template", "subjects", "kernels", *ARCHITECTURES, "spill", "runs", "error/allowed", "failures", "seconds",
    )  # fmt: skip
    report = Report("cuda_corners", Conditions.now(0, arguments.threads, 1), header)
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
    if left_out:
        report.notes.append(f"{left_out} of {len(wanted)} subjects were left out, for want of time")
    report.notes += [f for t in tallies.values() for f in t.failures]
    print(report)
    print(f"written to {report.write(arguments.out)}")
    return int(any(t.failures for t in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
