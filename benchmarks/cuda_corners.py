"""Every GPU template at every corner of its space, on every type: compiled for sm_80 and sm_90a, run in the simulator
late and early and in several orders of threads, compared with float64. No GPU is needed.

python -m benchmarks.cuda_corners [--template product] [--part 0/4] [--resume]
python -m benchmarks.cuda_corners --merge part0/cuda_corners.json part1/cuda_corners.json ...

The file is written after every subject. With --resume, a subject is proved again only if something changed: the texts
of its kernels, the simulator, the compilers' versions, or its arrays.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from tqdm import tqdm

from benchmarks.support.conditions import Conditions
from benchmarks.support.report import RESULTS, Check, Report
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.sim.unit import engine_unit, kernel_unit
from taskmap.ir.errors import TaskmapError
from tests.cuda_proof.proving import ARCHITECTURES, RUNS, Corner, Proof, corners
from tests.cuda_proof.subjects import Subject, subjects

NAME = "cuda_corners"
HEADER = (
    "template", "subjects", "kernels", *ARCHITECTURES, "spill", "runs", "error/allowed", "failures", "seconds",
)  # fmt: skip


@dataclass(slots=True)
class Proved:
    """The results for one subject. digest: of everything that they depend on; compiled: kernels by architecture."""

    template: str
    subject: str
    digest: str = ""
    kernels: int = 0
    compiled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ARCHITECTURES, 0))
    runs: int = 0
    error: float = 0.0
    spilled: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """True if nothing failed or spilled."""
        return not self.failures and not self.spilled

    def count(self, c: Corner) -> None:
        """Add a corner's results."""
        self.kernels += 1
        self.runs += c.runs
        self.error = max(self.error, c.error)
        self.spilled += [f"{c} for {isa}: {why.splitlines()[2].strip()}" for isa, why in c.spilled.items()]
        self.failures += [f"{c}: {f}" for f in c.failures]
        for isa in c.binaries:
            self.compiled[isa] += 1


def main(argv: list[str] | None = None) -> int:
    """The command; 1 if a corner failed or spills registers."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--template", nargs="*", help="only these")
    cli.add_argument("--part", default="0/1", help="one part of so many: each takes every so many-th subject")
    cli.add_argument("--seconds", type=float, default=float("inf"), help="begin no subject later than this")
    cli.add_argument("--threads", type=int, default=2, help="compilations at once")
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    cli.add_argument("--resume", action="store_true", help="keep the file's results for what has not changed")
    cli.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="run nothing: join the results of parts")
    arguments = cli.parse_args(argv)
    conditions = Conditions.now(0, arguments.threads, 1)
    if arguments.merge:
        found = [p for file in arguments.merge for p in read(file).values()]
        return finished(reported(found, sum(1 for _ in subjects()), conditions), found, arguments.out)
    part, parts = map(int, arguments.part.split("/"))
    wanted = [s for s in subjects() if not arguments.template or s.template in arguments.template][part::parts]
    known = read(arguments.out / f"{NAME}.json") if arguments.resume else {}
    proof = Proof(arguments.threads)
    found = list[Proved]()
    report = reported(found, len(wanted), conditions, known.values())
    begun = time.perf_counter()
    for subject in tqdm(wanted, disable=None):
        if time.perf_counter() - begun > arguments.seconds:
            continue
        found.append(proved(subject, proof, known.pop(str(subject), None)))
        report = reported(found, len(wanted), conditions, known.values())
        report.write(arguments.out)
    proof.close()
    return finished(report, found, arguments.out)


def proved(subject: Subject, proof: Proof, earlier: Proved | None = None) -> Proved:
    """The results for a subject: ``earlier`` ones without a failure, if they are of the same kernels."""
    made = Proved(subject.template, str(subject))
    started = time.perf_counter()
    try:
        every = corners(subject)
        made.digest = digest(subject, every)
        if earlier is not None and earlier.clean and earlier.digest == made.digest:
            return earlier
        proof.prove(every)
    except TaskmapError as error:
        made.failures.append(f"{subject}: {error}")
        return made
    for c in every:
        made.count(c)
    made.seconds = time.perf_counter() - started
    return made


def digest(subject: Subject, every: Sequence[Corner]) -> str:
    """A hash of a subject's kernels as the simulator and NVRTC read them, of its arrays, limits and ways to run."""
    made = hashlib.sha256(repr((RUNS, sorted(subject.limits.items()), _tools())).encode())
    for c in every:
        for isa, source in sorted(c.sources.items()):
            made.update(f"{c} for {isa}\n{kernel_unit([source], checked=True)}".encode())
    for array in subject.case.arrays:
        made.update(array.tobytes())
    return made.hexdigest()[:16]


@cache
def _tools() -> tuple[str, ...]:
    return (engine_unit(), *(find_cuda_toolchain(isa).identity for isa in ARCHITECTURES))


def read(file: Path) -> dict[str, Proved]:
    """The results in a file by subject; none if there is no file, or one of another form."""
    if not file.exists():
        return {}
    rows = json.loads(file.read_text(encoding="utf-8"))["data"]
    return {row["subject"]: Proved(**row) for row in rows if "digest" in row}


def reported(
    found: Sequence[Proved], wanted: int, conditions: Conditions, unseen: Iterable[Proved] = ()
) -> Report:  # fmt: skip
    """The table of ``wanted`` subjects by template. ``unseen``: earlier results, kept in the file for the next run."""
    report = Report(NAME, conditions, HEADER)
    by_template: dict[str, list[Proved]] = {}
    for p in found:
        by_template.setdefault(p.template, []).append(p)
    for template, own in by_template.items():
        compiled = (sum(p.compiled[isa] for p in own) for isa in ARCHITECTURES)
        spilled, failures = sum(len(p.spilled) for p in own), sum(len(p.failures) for p in own)
        counts = (len(own), sum(p.kernels for p in own), *compiled, spilled, sum(p.runs for p in own))
        worst, seconds = max(p.error for p in own), sum(p.seconds for p in own)
        report.rows.append((template, *map(str, counts), f"{worst:.2f}", str(failures), f"{seconds:.0f}"))
        report.checks.append(Check(f"{template}: failures", failures, 0))
        report.checks.append(Check(f"{template}: spills", spilled, 0))
    if wanted > len(found):
        report.notes.append(f"{wanted - len(found)} of {wanted} subjects were left out, for want of time")
    report.notes += [f for p in found for f in p.failures]
    report.data += [asdict(p) for p in (*found, *unseen)]
    return report


def finished(report: Report, found: Iterable[Proved], out: Path) -> int:
    """Print and write the report; 1 if a subject failed or spills registers."""
    print(report)
    print(f"written to {report.write(out)}")
    return int(not all(p.clean for p in found))


if __name__ == "__main__":
    sys.exit(main())
