"""Kernels against cuBLAS, cuDNN, flash attention and copy bandwidth, in the same run.

python -m benchmarks.gpu.kernels --section matmul [--seconds 60] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import SECTIONS, Case, Tensors, randn
from benchmarks.gpu.conditions import GpuConditions, gpu_state
from benchmarks.gpu.timing import Call, Deadline, compare
from benchmarks.models.spec import relative_error
from taskmap.torch_backend import compile_fx

_CACHE = 128 << 20
"""Bytes that the sets of inputs together exceed: more than any L2 cache has."""

_MOST_SETS = 8


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
    """One case as a record."""
    torch._dynamo.reset()
    compiled = torch.compile(case.function, backend=compile_fx)
    sets = input_sets(case)
    with torch.no_grad():
        wrong = error(case, compiled, sets[0])
        calls = {"taskmap": rotating(compiled, sets), "torch": rotating(case.function, sets)}
        if case.copy:
            source, target = randn(int(case.bytes) // 4), randn(int(case.bytes) // 4)
            calls["copy"] = lambda _: target.copy_(source)
        found = compare(calls, "copy" if case.copy else "torch")
    own = found.timings["taskmap"].median
    return {
        "name": case.name,
        "timings": {name: asdict(timing) for name, timing in found.timings.items()},
        "ratio": found.ratios["taskmap"],
        "floor": case.floor,
        "baseline": "copy" if case.copy else "torch",
        "relative_error": wrong,
        "right": wrong <= case.tolerance,
        "tflops": case.flops / own / 1e12,
        "gigabytes": case.bytes / own / 1e9,
    }


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 where a result is wrong."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--section", choices=sorted(SECTIONS), required=True)
    cli.add_argument("--seconds", type=float, default=120.0, help="after these no new case is begun")
    cli.add_argument("--out", type=Path, default=Path("gpu-results"))
    cli.add_argument("--seed", type=int, default=0)
    arguments = cli.parse_args(argv)
    torch.manual_seed(arguments.seed)
    deadline = Deadline(arguments.seconds)
    conditions = GpuConditions.now(arguments.seed).to_dict()
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    path = arguments.out / f"gpu_{arguments.section}.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        record = {"conditions": conditions, "rows": rows, "skipped": skipped, "state_after": gpu_state()}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    for case in SECTIONS[arguments.section]():
        if deadline.over:
            skipped.append(case.name)
            continue
        try:
            rows.append(measure(case))
        except Exception as failed:
            rows.append({"name": case.name, "failed": f"{type(failed).__name__}: {failed}"[:2000], "right": False})
        print(line(rows[-1]), flush=True)
        keep()  # after every case, so that a crash loses only the case that it is in
    keep()
    return int(not all(row["right"] for row in rows))


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
        f"{row['ratio']:.2f}x {row['baseline']} (wanted {row['floor']:.2f}){right}"
    )


if __name__ == "__main__":
    sys.exit(main())
