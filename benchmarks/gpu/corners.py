"""Kernels of every GPU template, at every corner of its space and on every type, on the GPU against float64.

They are those that the test suite runs in the simulator; this needs no pytest.

python -m benchmarks.gpu.corners [--seconds 60] [--out FOLDER] [--simulate sm_90a]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.gpu import hardware
from benchmarks.gpu.command import part_options
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.hardware import is_lost
from benchmarks.gpu.record import LOST, Record, measure_each
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
    cli = part_options(__doc__, 60.0, "kernel")
    cli.add_argument("--simulate", metavar="ISA", help="run in the simulator, as this architecture: needs no GPU")
    arguments = cli.parse_args(argv)
    deadline = Deadline(arguments.seconds)
    isa, conditions = arguments.simulate, {"simulated": arguments.simulate}
    if not isa:
        simulator.run = hardware.run
        isa, conditions = hardware.machine().target.isa, GpuConditions.now(0, INPUTS, "float64").to_dict()
    record = Record.begun(arguments.out / "gpu_corners.json", conditions, resume=arguments.resume)
    cases = (
        (f"{chosen.subject} [{chosen.config}]", partial(measure, chosen, isa))
        for chosen in covering(candidates(every(), (isa,)))
    )
    if not measure_each(record, cases, deadline.over, lambda: not arguments.simulate and is_lost(), _show):
        return LOST
    wrong = sum(not row["right"] for row in record.rows)
    print(
        f"{len(record.rows)} corners ran on {isa}, {wrong} are wrong; {len(record.skipped)} left out for want of time"
    )
    return record.status or int(not record.rows)


def _show(row: dict[str, Any]) -> None:
    if not row["right"]:
        print(f"{'FAILED' if 'failed' in row else 'WRONG '}  {json.dumps(row)[:600]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
