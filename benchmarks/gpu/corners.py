"""Kernels of every GPU template, at every corner of its space and on every type, on the GPU against float64.

They are those that the test suite runs in the simulator; this needs no pytest.

python -m benchmarks.gpu.corners [--seconds 60] [--out FOLDER] [--simulate sm_90a]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import hardware
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.hardware import is_lost
from benchmarks.gpu.record import LOST, Record, measured
from benchmarks.gpu.timing import Deadline
from taskmap.backend.sim import run as simulator
from tests.cuda_proof.covering import Candidate, candidates, covering
from tests.cuda_proof.proving import corners
from tests.cuda_proof.reference import exact
from tests.cuda_proof.subjects import subjects
from tests.schedules.cuda_running import simulated

INPUTS = "those of the test suite: random, and at the edges of each type"


def measure(chosen: Candidate, isa: str) -> dict[str, Any]:
    """How far the kernels of one configuration are off, as a share of what their types allow."""
    case = chosen.subject.case
    found: list[dict[str, Any]] = []
    for corner in corners(chosen.subject, (isa,), {chosen.config}):
        results = simulated(case, corner.kernel, corner.sources[isa])
        error = exact(case).error(results, chosen.subject.limits)
        found.append({"note": corner.kernel.note, "error/allowed": error, "right": error <= 1})
    return {"kernels": found, "right": bool(found) and all(row["right"] for row in found)}


def main(argv: list[str] | None = None, every: Callable[[], Any] = subjects) -> int:
    """The command: 0, or 1 where a result is wrong."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seconds", type=float, default=60.0, help="after these no new kernel is begun")
    cli.add_argument("--out", type=Path, default=Path("gpu-results"))
    cli.add_argument("--simulate", metavar="ISA", help="run in the simulator, as this architecture: needs no GPU")
    cli.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    arguments = cli.parse_args(argv)
    deadline = Deadline(arguments.seconds)
    isa, conditions = arguments.simulate, {"simulated": arguments.simulate}
    if not isa:
        simulator.run = hardware.run
        isa, conditions = hardware.machine().target.isa, GpuConditions.now(0, INPUTS, "float64").to_dict()
    record = Record.begun(arguments.out / "gpu_corners.json", conditions, resume=arguments.resume)
    for chosen in covering(candidates(every(), (isa,))):
        name = f"{chosen.subject} [{chosen.config}]"
        if record.has(name):
            continue
        if deadline.over:
            record.skipped.append(name)
            continue
        usable = measured(record, name, partial(measure, chosen, isa), lambda: not arguments.simulate and is_lost())
        row = record.rows[-1]
        if not row["right"]:
            print(f"{'FAILED' if 'failed' in row else 'WRONG '}  {json.dumps(row)[:600]}", flush=True)
        if not usable:
            return LOST
    record.write()
    wrong = sum(not row["right"] for row in record.rows)
    print(
        f"{len(record.rows)} corners ran on {isa}, {wrong} are wrong; {len(record.skipped)} left out for want of time"
    )
    return record.status or int(not record.rows)


if __name__ == "__main__":
    sys.exit(main())
