"""Every entry of the instruction table that this GPU has, on the GPU: what it does is what the table says.

The checks are those of the test suite, which the simulator passes. This needs no pytest.

python -m benchmarks.gpu.instructions [--seconds 60] [--out FOLDER] [--simulate sm_90a]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu import hardware
from benchmarks.gpu.command import part_options
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.record import LOST, Record
from benchmarks.gpu.timing import Deadline
from taskmap.backend.sim import run as simulator
from taskmap.backend.store import KernelStore
from taskmap.ir.errors import DeviceError
from taskmap.ir.instructions import INSTRUCTIONS
from taskmap.ir.target import Target, cuda_target
from tests.backend.sim.instruction_checks import CHECKS
from tests.backend.sim.instruction_protocols import PROTOCOLS

INPUTS = "small whole numbers, of which all sums are exact; bytes and bits of every kind"


@dataclass(frozen=True, slots=True)
class Work:
    """``run`` (store) raises where one of ``entries`` does not do what the table says."""

    name: str
    entries: tuple[str, ...]
    run: Callable[[KernelStore], object]


def works(target: Target, every: bool) -> Iterator[Work]:
    """All that a target has, the rarest first; ``every``: also those that the test suite leaves out, as one rule writes
    them and others."""
    for protocol in PROTOCOLS:
        if all(entry.targets(target) for entry in protocol.used):
            yield Work(str(protocol), protocol.entries, protocol.check)
    rest: list[Work] = []
    for check in CHECKS:
        for entry, variant in check.cases(every):
            if not entry.targets(target):
                continue
            name = "-".join([check.name, entry.name, *map(str, variant)])
            work = Work(name, (entry.name,), partial(_checked, check.function, entry, variant))
            if check.shown(entry):
                yield work
            else:
                rest.append(work)
    yield from rest


def _checked(function: Callable[..., None], entry: object, variant: tuple[Any, ...], store: KernelStore) -> None:
    function(store, entry, *variant)


def measure(work: Work, store: KernelStore, deadline: Deadline, lost: list[str]) -> dict[str, Any] | None:
    """A check as a record; None when there is no time for it, or the GPU's context has ended."""
    if deadline.over() or lost:
        return None
    try:
        work.run(store)
    except Exception as failed:
        if isinstance(failed, DeviceError) and hardware.is_lost():
            if lost:
                return None  # another thread's kernel may have ended it: this one is tried again
            lost.append(work.name)
        why = f"{type(failed).__name__}: {failed}"[:2000]
        return {"name": work.name, "entries": work.entries, "failed": why, "right": False}
    return {"name": work.name, "entries": work.entries, "right": True}


def main(argv: list[str] | None = None, chosen: Callable[[Work], bool] = lambda _: True) -> int:
    """The command: 0, or 1 where a result is wrong."""
    cli = part_options(__doc__, 75.0, "check")
    cli.add_argument("--workers", type=int, default=12, help="threads: compiling takes longer than running")
    cli.add_argument("--simulate", metavar="ISA", help="run in the simulator, as this architecture: needs no GPU")
    arguments = cli.parse_args(argv)
    deadline, store, lost = Deadline(arguments.seconds), KernelStore(), list[str]()
    if arguments.simulate:
        target, conditions, workers = cuda_target(arguments.simulate), {"simulated": arguments.simulate}, 1
    else:
        simulator.run = hardware.run
        target, conditions = hardware.machine().target, GpuConditions.now(0, INPUTS, "exact").to_dict()
        workers = arguments.workers
    record = Record.begun(arguments.out / "gpu_instructions.json", conditions, resume=arguments.resume)
    wanted = [
        work for work in works(target, every=not arguments.simulate) if chosen(work) and not record.has(work.name)
    ]
    with ThreadPoolExecutor(workers) as pool:
        for row in pool.map(lambda work: measure(work, store, deadline, lost), wanted):
            if row is None:
                continue
            record.rows.append({**row, "run": len(record.runs) - 1})
            if not row["right"]:
                print(f"FAILED  {row['name']}: {row['failed'][:600]}", flush=True)
    done = {row["name"] for row in record.rows}
    record.skipped += [work.name for work in wanted if work.name not in done]
    record.write()
    checked = {name for row in record.rows for name in row["entries"]}
    every = sum(entry.targets(target) for entry in INSTRUCTIONS)
    wrong = sum(not row["right"] for row in record.rows)
    print(
        f"{len(checked)} of the {every} entries of {target.isa} ran in {len(record.rows)} kernels, {wrong} are "
        f"wrong; {len(record.skipped)} kernels were left out"
    )
    return LOST if lost else record.status or int(not record.rows)


if __name__ == "__main__":
    sys.exit(main())
