"""Kernels of every GPU template, at every corner of its space and on every type, on the GPU against float64.

The test suite runs the same kernels in the simulator; this needs no pytest.

python -m benchmarks.gpu.corners [--seconds 60] [--out FOLDER] [--simulate sm_90a]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from benchmarks.gpu import hardware
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.hardware import compiled_ahead, is_lost
from benchmarks.gpu.record import LOST, WRONG, left_of, measure_each
from benchmarks.gpu.timing import Deadline
from taskmap.backend.sim import run as simulator
from tests.cuda_proof.covering import Candidate, candidates, covering
from tests.cuda_proof.proving import corners
from tests.cuda_proof.reference import exact
from tests.cuda_proof.subjects import subjects
from tests.schedules.cuda_running import simulated

INPUTS = "those of the test suite: random, and at the edges of each type"


def measure(chosen: Candidate, isa: str) -> dict[str, Any]:
    """The error of one configuration's kernels, as a share of the tolerance of their types."""
    case = chosen.subject.case
    found: list[dict[str, Any]] = []
    for corner in corners(chosen.subject, (isa,), {chosen.config}):
        results = simulated(case, corner.kernel, corner.sources[isa])
        error = exact(case).error(results, chosen.subject.limits)
        found.append({"note": corner.kernel.note, "error/allowed": error, "right": error <= 1})
    return {"kernels": found, "right": bool(found) and all(row["right"] for row in found)}


def corner_cases(isa: str, every: Callable[[], Any] = subjects) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Every corner that represents others, by name."""
    for chosen in covering(candidates(every(), (isa,))):
        yield f"{chosen.subject} [{chosen.config}]", partial(measure, chosen, isa)


def main(argv: list[str] | None = None, every: Callable[[], Any] = subjects) -> int:
    """The command: 0, or 1 if a result is wrong."""
    cli = part_options(__doc__, 60.0, "kernel")
    cli.add_argument("--simulate", metavar="ISA", help="run in the simulator, as this architecture: needs no GPU")
    arguments = cli.parse_args(argv)
    deadline = Deadline(arguments.seconds)
    if not arguments.simulate:
        simulator.run = hardware.run

    def conditions() -> dict[str, Any]:
        if arguments.simulate:
            return {"simulated": arguments.simulate}
        return GpuConditions.now(0, INPUTS, "float64").to_dict()

    record = record_of(arguments, "gpu_corners", conditions)
    isa = arguments.simulate or hardware.machine().target.isa
    cases: Iterable[tuple[str, Callable[[], dict[str, Any]]]] = corner_cases(isa, every)
    if not arguments.simulate:
        cases = compiled_ahead(left_of(record, cases))
    if not measure_each(record, cases, deadline.over, lambda: not arguments.simulate and is_lost(), _show):
        return LOST
    wrong = sum(not row["right"] for row in record.rows)
    print(
        f"{len(record.rows)} corners ran on {isa}, {wrong} are wrong; {len(record.skipped)} left out for want of time"
    )
    return record.status if record.rows else WRONG


def _show(row: dict[str, Any]) -> None:
    if not row["right"]:
        print(f"{'FAILED' if 'failed' in row else 'WRONG '}  {json.dumps(row)[:600]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
