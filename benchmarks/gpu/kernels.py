"""Kernels against cuBLAS, cuDNN, flash attention and copy bandwidth, in the same run.

python -m benchmarks.gpu.kernels --section matmul [--seconds 60] [--out FOLDER] [--resume]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.cases import SECTIONS, Case, Tensors, randn
from benchmarks.gpu.command import part_options
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.hardware import is_lost
from benchmarks.gpu.record import LOST, Record, measure_each, summary
from benchmarks.gpu.timing import Call, Deadline, compare
from benchmarks.models.spec import relative_error
from taskmap.torch_backend import compile_fx

_CACHE = 128 << 20
"""Bytes that the sets of inputs together exceed: more than any L2 cache has."""

_MOST_SETS = 64
INPUTS = (
    "standard normal, weights of convolutions scaled to keep it; sets that together exceed 128 MiB, one after another"
)
METHOD = (
    "CUDA graphs of up to 64 calls, replayed for windows of 30 ms after 0.4 s of work; engines take turns in random "
    "order; what L2 holds is not flushed, but belongs to other inputs"
)


def rotating(function: Callable[..., Any], sets: Sequence[Tensors]) -> Call:
    """The call on one set after the other."""
    return lambda i: function(*sets[i % len(sets)])


def input_sets(case: Case) -> list[Tensors]:
    """As many sets as exceed the cache."""
    sets = [case.make()]
    size = sum(t.numel() * t.element_size() for t in sets[0])
    sets += [case.make() for _ in range(min(_MOST_SETS, -(-_CACHE // size)) - 1)]
    return sets


def error(case: Case, compiled: Callable[..., torch.Tensor], inputs: Tensors) -> float:
    """The relative error against float64, of the first rows where all would be too much work."""
    got = compiled(*inputs)
    if case.flops > 2e12:  # float64 would take seconds: against the same operator of PyTorch
        return relative_error((got,), (case.function(*inputs),))
    return relative_error((got,), (case.function(*(t.double() for t in inputs)),))


def measure(case: Case) -> dict[str, Any]:
    """One case as a record; ``ratio`` is the speed that its floor speaks of, ``to_torch`` that against PyTorch."""
    torch._dynamo.reset()
    sets = input_sets(case)
    with torch.no_grad():
        compiled = torch.compile(case.function, backend=compile_fx, dynamic=False)
        wrong = error(case, compiled, sets[0])
        calls = {"taskmap": rotating(compiled, sets), "torch": rotating(case.baseline or case.function, sets)}
        if case.copy:
            source, target = randn(int(case.bytes) // 4), randn(int(case.bytes) // 4)
            calls["copy"] = lambda _: target.copy_(source)
        if case.of_own is not None:
            other = torch.compile(case.of_own.function, backend=compile_fx, dynamic=False)
            calls[case.of_own.name] = rotating(other, input_sets(case.of_own))
        baseline = "copy" if case.copy else "torch" if case.of_own is None else case.of_own.name
        found = compare(calls, baseline)
    own, work = found.timings["taskmap"].median, 1.0 if case.of_own is None else case.flops / case.of_own.flops
    return {
        "name": case.name,
        "timings": {name: asdict(timing) for name, timing in found.timings.items()},
        "ratio": found.ratios["taskmap"] * work,
        "floor": case.floor,
        "baseline": baseline,
        "to_torch": found.ratios["taskmap"] / found.ratios["torch"],
        "relative_error": wrong,
        "right": wrong <= case.tolerance,
        "tflops": case.flops / own / 1e12,
        "gigabytes": case.bytes / own / 1e9,
        "state": dict(found.state),
    }


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 where a result is wrong; LOST where a kernel has ended the GPU's context."""
    cli = part_options(__doc__, 120.0, "case")
    cli.add_argument("--section", choices=sorted(SECTIONS), required=True)
    cli.add_argument("--seed", type=int, default=0)
    arguments = cli.parse_args(argv)
    torch.manual_seed(arguments.seed)
    torch.backends.cudnn.benchmark = True
    deadline = Deadline(arguments.seconds)
    conditions = GpuConditions.now(arguments.seed, INPUTS, METHOD).to_dict()
    record = Record.begun(arguments.out / f"gpu_{arguments.section}.json", conditions, resume=arguments.resume)
    print(f"inputs: {INPUTS}", flush=True)
    cases = ((case.name, partial(measure, case)) for case in SECTIONS[arguments.section]())
    if not measure_each(record, cases, deadline.over, is_lost, lambda row: print(line(row), flush=True)):
        return LOST
    print(f"{arguments.section}: {summary(record.rows)}, {len(record.skipped)} left out for want of time")
    return record.status


def line(row: dict[str, Any]) -> str:
    """One record as text."""
    if "failed" in row:
        return f"FAILED  {row['name']}: {row['failed'].splitlines()[0][:300]}"
    own = row["timings"]["taskmap"]["median"]
    rate = f"{row['tflops']:.0f} TFLOP/s" if row["tflops"] else f"{row['gigabytes']:.0f} GB/s"
    met = "met" if row["ratio"] >= row["floor"] else "MISSED"
    right = "" if row["right"] else f"  WRONG: relative error {row['relative_error']:.2e}"
    return (
        f"{met:6}  {row['name']:28} {own * 1e6:10.1f} us  {rate:>14}  "
        f"{row['ratio']:.2f}x {row['baseline']} (wanted {row['floor']:.2f}), {row['to_torch']:.2f}x torch{right}"
    )


if __name__ == "__main__":
    sys.exit(main())
