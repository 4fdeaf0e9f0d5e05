"""Checks on the GPU that every instruction that it has does what the instruction table says.

The checks are those of the test suite, which pass in the simulator. This needs no pytest.

python -m benchmarks.gpu.instructions [--seconds 60] [--out FOLDER] [--simulate sm_90a]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu import hardware
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.record import LOST, WRONG, left_of, measure_each
from benchmarks.gpu.timing import Deadline
from taskmap.backend.sim import run as simulator
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.isa.table import INSTRUCTIONS
from taskmap.ir.target import GpuTarget, cuda_target
from tests.backend.sim.fragment_products import FRAGMENT_PRODUCTS
from tests.backend.sim.instruction_checks import CHECKS
from tests.backend.sim.instruction_protocols import PROTOCOLS

INPUTS = "small whole numbers, of which all sums are exact; bytes and bits of every kind"


@dataclass(frozen=True, slots=True)
class Work:
    """``run`` (store) raises if one of ``entries`` does not do what the table says."""

    name: str
    entries: tuple[str, ...]
    run: Callable[[KernelStore], object]


def works(target: GpuTarget, every: bool) -> Iterator[Work]:
    """All checks for a target that hardware answers too, the rarest first; ``every``: also those that the test suite
    leaves out, as one rule writes them and others."""
    for protocol in PROTOCOLS:
        if all(entry.targets(target) for entry in protocol.used):
            yield Work(str(protocol), protocol.entries, protocol.check)
    for product in FRAGMENT_PRODUCTS:
        if product.multiply.targets(target):
            yield Work(str(product), product.entries, product.check)
    rest: list[Work] = []
    for check in CHECKS:
        for entry, variant in check.cases(every):
            if not entry.targets(target) or (check.holders and entry.opaque):
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


def measure(work: Work, store: KernelStore) -> dict[str, Any]:
    """A check as a record; raises if an entry does not do what the table says."""
    work.run(store)
    return {"entries": work.entries, "right": True}


def main(argv: list[str] | None = None, chosen: Callable[[Work], bool] = lambda _: True) -> int:
    """The command: 0, or WRONG if a result is wrong; LOST if a kernel has ended the GPU's context."""
    cli = part_options(__doc__, 75.0, "check")
    cli.add_argument("--workers", type=int, help="threads that compile ahead")
    cli.add_argument("--simulate", metavar="ISA", help="run in the simulator, as this architecture: needs no GPU")
    arguments = cli.parse_args(argv)
    deadline, store = Deadline(arguments.seconds), KernelStore()
    if not arguments.simulate:
        simulator.run = hardware.run

    def conditions() -> dict[str, Any]:
        if arguments.simulate:
            return {"simulated": arguments.simulate}
        return GpuConditions.now(0, INPUTS, "exact").to_dict()

    record = record_of(arguments, "gpu_instructions", conditions)
    target = cuda_target(arguments.simulate) if arguments.simulate else hardware.machine().target
    wanted = [work for work in works(target, every=not arguments.simulate) if chosen(work)]
    cases: Iterable[tuple[str, Callable[[], dict[str, Any]]]] = (
        (work.name, partial(measure, work, store)) for work in wanted
    )
    if not arguments.simulate:
        cases = hardware.compiled_ahead(left_of(record, cases), arguments.workers)
    if not measure_each(record, cases, deadline.over, lambda: not arguments.simulate and hardware.is_lost(), _show):
        return LOST
    right = {row["name"] for row in record.rows if row["right"]}
    checked = {name for work in wanted if work.name in right for name in work.entries}
    every = sum(entry.targets(target) for entry in INSTRUCTIONS)
    print(
        f"{len(checked)} of the {every} entries of {target.isa} are right, in {len(right)} of {len(record.rows)} "
        f"kernels that ran; {len(record.skipped)} kernels were left out"
    )
    return record.status if record.rows else WRONG


def _show(row: dict[str, Any]) -> None:
    if not row["right"]:
        print(f"FAILED  {row['name']}: {row['failed'][:600]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
