"""Whole networks on a GPU against eager and torch.compile, and that they are right.

python -m benchmarks.gpu.networks [--seconds 120] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import taskmap
from benchmarks.gpu.conditions import GpuConditions, gpu_state
from benchmarks.gpu.timing import Call, Deadline, compare
from benchmarks.models import MODELS, as_tensors, relative_error, to_float64
from taskmap.torch_backend import compile_fx

NAMES = ("resnet50", "mobilenet_v2", "bert_base", "gpt2", "llama")
_NEED_TRANSFORMERS = ("bert_base", "gpt2")
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2}


def cases() -> Iterator[tuple[str, int, torch.dtype]]:
    """Batch 1 first: the most telling."""
    for batch, dtype in ((1, torch.float16), (1, torch.float32), (8, torch.float16), (8, torch.float32)):
        for name in NAMES:
            yield name, batch, dtype


def measure(name: str, batch: int, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """One network as a record."""
    torch._dynamo.reset()
    module, args, kwargs = MODELS[name].build(seed)
    args = tuple(a.repeat(batch, *[1] * (a.dim() - 1)) if isinstance(a, torch.Tensor) else a for a in args)
    wide, wide_args = to_float64(module, args)
    module = module.to("cuda", dtype)
    args = tuple(_moved(a, dtype) for a in args)
    with torch.no_grad():
        want = as_tensors(wide.cuda()(*(_moved(a, torch.float64) for a in wide_args), **kwargs))
        del wide
        before = taskmap.metrics()
        started = time.perf_counter()
        own = torch.compile(module, backend=compile_fx)
        got = as_tensors(own(*args, **kwargs))
        torch.cuda.synchronize()
        compile_seconds = time.perf_counter() - started
        wrong = relative_error(got, want)
        after = taskmap.metrics()
        started = time.perf_counter()
        inductor, why_not = _inductor(module, args, kwargs)
        inductor_seconds = time.perf_counter() - started
        calls: dict[str, Call] = {
            "taskmap": lambda _: own(*args, **kwargs),
            "torch": lambda _: module(*args, **kwargs),
        }
        if inductor is not None:
            calls["inductor"] = lambda _: inductor(*args, **kwargs)
        found = compare(calls, "torch")
    best = max(found.ratios.get("inductor", 0.0), 1.0)
    return {
        "name": f"{name} batch {batch} {str(dtype).removeprefix('torch.')}",
        "timings": {engine: asdict(timing) for engine, timing in found.timings.items()},
        "ratio": found.ratios["taskmap"] / best,
        "to_eager": found.ratios["taskmap"],
        "floor": 1.0,
        "compile_seconds": compile_seconds,
        "inductor_seconds": inductor_seconds,
        "inductor_failed": why_not,
        "externs": after.externs - before.externs,
        "fallbacks": after.fallbacks - before.fallbacks,
        "relative_error": wrong,
        "right": wrong <= TOLERANCE[dtype],
    }


def _inductor(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any] | None, str]:
    """The network compiled by PyTorch, and run once; or None and why not: without a C compiler or Triton it cannot."""
    made: Callable[..., Any] = torch.compile(module)
    try:
        made(*args, **kwargs)
        torch.cuda.synchronize()
    except Exception as failed:
        return None, f"{type(failed).__name__}: {failed}"[:500]
    return made, ""


def _moved(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to("cuda", dtype) if value.is_floating_point() else value.cuda()


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 where a result is wrong."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--seconds", type=float, default=150.0, help="after these no new network is begun")
    cli.add_argument("--out", type=Path, default=Path("gpu-results"))
    cli.add_argument("--seed", type=int, default=0)
    arguments = cli.parse_args(argv)
    deadline = Deadline(arguments.seconds)
    conditions = GpuConditions.now(arguments.seed).to_dict()
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    path = arguments.out / "gpu_networks.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        record = {"conditions": conditions, "rows": rows, "skipped": skipped, "state_after": gpu_state()}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    for name, batch, dtype in cases():
        if deadline.over:
            skipped.append(f"{name} batch {batch} {dtype}")
            continue
        if name in _NEED_TRANSFORMERS and find_spec("transformers") is None:
            skipped.append(f"{name} batch {batch} {dtype}: transformers is not installed")
            continue
        try:
            rows.append(measure(name, batch, dtype, arguments.seed))
        except Exception as failed:
            text = f"{type(failed).__name__}: {failed}"[:2000]
            rows.append({"name": f"{name} batch {batch} {dtype}", "failed": text, "right": False})
        print(line(rows[-1]), flush=True)
        keep()  # after every network, so that a crash loses only the one that it is in
    keep()
    return int(not all(row["right"] for row in rows))


def line(row: dict[str, Any]) -> str:
    """One record as text."""
    if "failed" in row:
        return f"FAILED  {row['name']}: {row['failed'].splitlines()[0][:300]}"
    times = "  ".join(f"{name} {timing['median'] * 1e3:.3f} ms" for name, timing in row["timings"].items())
    right = "" if row["right"] else f"  WRONG: relative error {row['relative_error']:.2e}"
    met = "met" if row["ratio"] >= row["floor"] else "MISSED"
    return (
        f"{met:6}  {row['name']:28} {times}  {row['ratio']:.2f}x the best of PyTorch's, compiled in "
        f"{row['compile_seconds']:.0f} s (inductor: {row['inductor_seconds']:.0f} s), {row['externs']} externs{right}"
    )


if __name__ == "__main__":
    sys.exit(main())
