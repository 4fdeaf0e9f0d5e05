"""Kernels of every GPU template, at every corner of its space and on every type, on the GPU against float64.

They are those that the test suite runs in the simulator; this needs no pytest.

python -m benchmarks.gpu.corners [--seconds 60] [--out FOLDER] [--simulate sm_90a]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu import hardware
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.timing import Deadline
from taskmap.backend.sim import run as simulator
from taskmap.ir.errors import DeviceError
from tests.cuda_proof.covering import Candidate, candidates, covering
from tests.cuda_proof.proving import corners
from tests.cuda_proof.reference import exact
from tests.cuda_proof.subjects import subjects
from tests.schedules.cuda_running import simulated


def measure(chosen: Candidate, isa: str) -> list[dict[str, Any]]:
    """How far the kernels of one configuration are off, as a share of what their types allow."""
    case = chosen.subject.case
    found = []
    for corner in corners(chosen.subject, (isa,), {chosen.config}):
        results = simulated(case, corner.kernel, corner.sources[isa])
        error = exact(case).error(results, chosen.subject.limits)
        found.append({"name": str(corner), "note": corner.kernel.note, "error/allowed": error, "right": error <= 1})
    return found


def main(argv: list[str] | None = None, every: Callable[[], Any] = subjects) -> int:
    """The command: 0, or 1 where a result is wrong."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seconds", type=float, default=60.0, help="after these no new kernel is begun")
    cli.add_argument("--out", type=Path, default=Path("gpu-results"))
    cli.add_argument("--simulate", metavar="ISA", help="run in the simulator, as this architecture: needs no GPU")
    arguments = cli.parse_args(argv)
    deadline = Deadline(arguments.seconds)
    isa, conditions = arguments.simulate, {"simulated": arguments.simulate}
    if not isa:
        simulator.run = hardware.run
        isa, conditions = hardware.machine().target.isa, GpuConditions.now(0).to_dict()
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    for chosen in covering(candidates(every(), (isa,))):
        name = f"{chosen.subject} [{chosen.config}]"
        if deadline.over:
            skipped.append(name)
            continue
        try:
            rows += measure(chosen, isa)
        except Exception as failed:
            rows.append({"name": name, "failed": f"{type(failed).__name__}: {failed}"[:2000], "right": False})
            if isinstance(failed, DeviceError):  # the context is lost: nothing runs in this process any more
                print(f"FAILED  {name}: {failed}")
                break
        if not rows[-1]["right"]:
            print(f"{'FAILED' if 'failed' in rows[-1] else 'WRONG '}  {json.dumps(rows[-1])[:600]}", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    record = {"conditions": conditions, "rows": rows, "skipped": skipped}
    (arguments.out / "gpu_corners.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    wrong = sum(not row["right"] for row in rows)
    print(f"{len(rows)} kernels ran on {isa}, {wrong} are wrong; {len(skipped)} were left out for want of time")
    return int(wrong > 0 or not rows)


if __name__ == "__main__":
    sys.exit(main())
