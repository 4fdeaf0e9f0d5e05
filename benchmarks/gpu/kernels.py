"""Kernels against cuBLAS, cuDNN, flash attention and copy bandwidth, in the same run.

python -m benchmarks.gpu.kernels --section matmul [--seconds 60] [--out FOLDER] [--resume]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.cases import Case, Tensors, randn
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.estimates import estimate
from benchmarks.gpu.hardware import is_lost, machine
from benchmarks.gpu.record import LOST, measure_each, summary
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.timing import Call, Deadline, compare
from benchmarks.gpu.watchdog import Watchdog
from benchmarks.models.spec import relative_error
from taskmap.torch_backend import compile_fx

_CACHE = 128 << 20
"""Bytes that the sets of inputs together exceed: more than any L2 cache has."""

_MOST_SETS = 64
_TEMPLATE = "template"
"""The kernel that taskmap makes without the case's strategy."""
_INDUCTOR = "inductor max-autotune"
_INDUCTOR_SECONDS = 60.0
"""The time that its autotuning may take."""

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
    """Enough sets of inputs to exceed the cache."""
    sets = [case.make()]
    size = sum(t.numel() * t.element_size() for t in sets[0])
    sets += [case.make() for _ in range(min(_MOST_SETS, -(-_CACHE // size)) - 1)]
    return sets


def error(case: Case, compiled: Callable[..., torch.Tensor], inputs: Tensors) -> float:
    """The relative error against float64, of the first rows if all would be too much work."""
    got = compiled(*inputs)
    if case.flops > 2e12:  # float64 would take seconds: against the same operator of PyTorch
        return relative_error((got,), (case.function(*inputs),))
    return relative_error((got,), (case.function(*(t.double() for t in inputs)),))


def measure(case: Case, watchdog: Watchdog, deadline: Deadline) -> dict[str, Any]:
    """One case as a record; ``ratio`` is the speed that its floor refers to, ``to_torch`` the speed against
    PyTorch, and ``to_best`` the speed against the fastest rival. ``missing`` gives the reasons for rivals not measured.
    """
    torch._dynamo.reset()
    sets = input_sets(case)
    with torch.no_grad():
        compiled = torch.compile(case.function, backend=compile_fx, dynamic=False, options=case.options)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "taskmap: the strategy")  # it makes no kernel
            wrong = error(case, compiled, sets[0])
        calls = {"taskmap": rotating(compiled, sets), "torch": rotating(case.baseline or case.function, sets)}
        if case.strategy is not None:
            calls[_TEMPLATE] = rotating(torch.compile(case.function, backend=compile_fx, dynamic=False), sets)
        if case.copy:
            source, target = randn(int(case.bytes) // 4), randn(int(case.bytes) // 4)
            calls["copy"] = lambda _: target.copy_(source)
        if case.of_own is not None:
            other = torch.compile(case.of_own.function, backend=compile_fx, dynamic=False)
            calls[case.of_own.name] = rotating(other, input_sets(case.of_own))
        rivals, missing = _rivals(case, sets, watchdog, deadline)
        baseline = "copy" if case.copy else "torch" if case.of_own is None else case.of_own.name
        found = compare({**calls, **rivals}, baseline)
    own, work = found.timings["taskmap"].median, 1.0 if case.of_own is None else case.flops / case.of_own.flops
    template = [_TEMPLATE] if case.strategy is not None else []
    best = max(("torch", *template, *rivals), key=lambda name: found.ratios[name])
    thought, by = estimate(case, machine().target)
    return {
        "name": case.name,
        "timings": {name: asdict(timing) for name, timing in found.timings.items()},
        "ratio": found.ratios["taskmap"] * work,
        "floor": case.floor,
        "baseline": baseline,
        "to_torch": found.ratios["taskmap"] / found.ratios["torch"],
        **{f"to_{name}": found.ratios["taskmap"] / found.ratios[name] for name in template},
        "best": best,
        "to_best": found.ratios["taskmap"] / found.ratios[best],
        "missing": missing,
        "estimate": thought,
        "estimated_by": by,
        "measured_over_estimate": own / thought,
        "relative_error": wrong,
        "right": wrong <= case.tolerance,
        "tflops": case.flops / own / 1e12,
        "gigabytes": case.bytes / own / 1e9,
        "state": dict(found.state),
    }


def _rivals(
    case: Case, sets: Sequence[Tensors], watchdog: Watchdog, deadline: Deadline
) -> tuple[dict[str, Call], dict[str, str]]:
    """The rivals that run here, and why others do not."""
    calls: dict[str, Call] = {}
    missing: dict[str, str] = {}
    made = dict(case.rivals)
    if case.inductor and deadline.left < _INDUCTOR_SECONDS:
        missing[_INDUCTOR] = "left out for want of time"
    elif case.inductor:
        # Its own CUDA graphs could not be recorded again: those of the measurement stand for them.
        made[_INDUCTOR] = torch.compile(case.function, mode="max-autotune-no-cudagraphs", dynamic=False)
    for name, function in made.items():
        watchdog.arm(watchdog.seconds + (_INDUCTOR_SECONDS if name == _INDUCTOR else 0))
        try:
            function(*sets[0])
            torch.cuda.synchronize()
        except Exception as failed:
            missing[name] = f"{type(failed).__name__}: {failed}"[:300]
            if is_lost():
                raise
            continue
        calls[name] = rotating(function, sets)
    watchdog.arm()
    return calls, missing


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if a result is wrong; LOST if a kernel has ended the GPU's context."""
    cli = part_options(__doc__, 120.0, "case")
    cli.add_argument("--section", choices=sorted(SECTIONS), required=True)
    cli.add_argument("--seed", type=int, default=0)
    arguments = cli.parse_args(argv)
    torch.manual_seed(arguments.seed)
    torch.backends.cudnn.benchmark = True
    deadline = Deadline(arguments.seconds)
    record = record_of(
        arguments, f"gpu_{arguments.section}", lambda: GpuConditions.now(arguments.seed, INPUTS, METHOD).to_dict()
    )
    print(f"inputs: {INPUTS}", flush=True)
    cases = ((case.name, partial(measure, case, record.watchdog, deadline)) for case in SECTIONS[arguments.section]())
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
    best = "" if row["best"] == "torch" else f", {row['to_best']:.2f}x {row['best']}"
    if row["best"] != _TEMPLATE and f"to_{_TEMPLATE}" in row:
        best += f", {row[f'to_{_TEMPLATE}']:.2f}x the {_TEMPLATE}"
    bound = f"wanted {row['floor']:.2f}" if row["floor"] else "no bound"
    right = "" if row["right"] else f"  WRONG: relative error {row['relative_error']:.2e}"
    return (
        f"{met:6}  {row['name']:28} {own * 1e6:10.1f} us  {rate:>14}  "
        f"{row['ratio']:.2f}x {row['baseline']} ({bound}), {row['to_torch']:.2f}x torch{best}, "
        f"{row['measured_over_estimate']:.2f}x the "
        f"{row['estimated_by']}'s {row['estimate'] * 1e6:.1f} us{right}"
    )


if __name__ == "__main__":
    sys.exit(main())
