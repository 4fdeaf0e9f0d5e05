"""Whole networks on a GPU: their correctness, and their speed against eager mode and torch.compile.

python -m benchmarks.gpu.networks [--seconds 120] [--out FOLDER] [--resume]

Latency of ordinary calls: of taskmap with CUDA graphs, without and with dependent launches, of eager mode, and of
torch.compile by default, with CUDA graphs (reduce-overhead), and with max-autotune, which has them as well. If there is
no time to compile for one of them, the record says so; with --resume a later call continues. The estimate is the
roofline: matrix products, convolutions and attention at the data sheet's rate, or one reading of all weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import taskmap
from benchmarks.gpu.cases import DEVICE
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.estimates import ROOFLINE, roofline
from benchmarks.gpu.hardware import is_lost, machine
from benchmarks.gpu.record import LOST, measure_each, summary
from benchmarks.gpu.timing import Call, Deadline, compare
from benchmarks.models import MODELS, ModelSpec, as_tensors, relative_error, to_float64
from benchmarks.models.plain import PLAIN
from taskmap.ir.target import GpuTarget
from taskmap.torch_backend import compile_fx

NAMES = ("resnet50", "mobilenet_v2", "inception_v3", "bert_base", "gpt2")
"""The five of the paper."""

INPUTS = (
    "images standard normal, tokens uniform; the same in every call; weights random, those of convnets He-initialised"
)
METHOD = (
    "calls as a user makes them, in windows of 30 ms after 0.4 s of work; engines take turns in random order; what L2 "
    "holds is not flushed"
)
RIVALS: Mapping[str, dict[str, Any]] = {
    "inductor": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
}
DEPENDENT = "taskmap, dependent launches"
OWN: Mapping[str, dict[str, Any]] = {
    "taskmap": {"backend": compile_fx, "mode": "reduce-overhead"},
    DEPENDENT: {"backend": compile_fx, "options": {"cuda_graphs": True, "dependent_launch": True}},
}
_OF_EAGER = 1.5
"""A result may have this many times the error of eager mode in the same type."""
_LONGER = 4.0
"""The planned compile time of max-autotune, as a multiple of torch.compile's default mode's."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One network as it is measured."""

    network: str
    batch: int
    dtype: torch.dtype
    tf32: bool = False

    def __str__(self) -> str:
        kind = {torch.float16: "f16", torch.float32: "f32"}[self.dtype]
        return f"{self.network} batch {self.batch} {kind}{' tf32' if self.tf32 else ''}"

    @property
    def tolerance(self) -> float:
        """The tolerance of the relative error against float64."""
        return 1e-3 if self.dtype == torch.float32 and not self.tf32 else 3e-2

    def rate(self, target: GpuTarget) -> float:
        """Floating-point operations of a multiprocessor per clock in products of this type."""
        if self.dtype == torch.float16:
            return target.f16_rate
        return target.f16_rate / 2 if self.tf32 else target.f32_rate

    @property
    def spec(self) -> ModelSpec:
        """The network's specification, which needs only PyTorch."""
        return PLAIN.get(self.network) or MODELS[self.network]


def settings() -> Iterator[Setting]:
    """The settings, batch 1 first, because it says most."""
    kinds = ((torch.float16, False), (torch.float32, True), (torch.float32, False))
    for batch, (dtype, tf32), name in product((1, 8), kinds, NAMES):
        yield Setting(name, batch, dtype, tf32)


def measure(setting: Setting, seed: int, deadline: Deadline) -> dict[str, Any]:
    """One network as a record; ``ratio`` is the speed against PyTorch's best measured mode."""
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("high" if setting.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = setting.tf32
    module, args, kwargs = setting.spec.build(seed)
    args = tuple(a.repeat(setting.batch, *[1] * (a.dim() - 1)) if isinstance(a, torch.Tensor) else a for a in args)
    with torch.no_grad():
        wide, wide_args = to_float64(module, args)
        with FlopCounterMode(display=False) as counted:
            want = as_tensors(wide.to(DEVICE)(*(_moved(a, torch.float64) for a in wide_args), **kwargs))
        del wide
        module = module.to(DEVICE, setting.dtype)
        args = tuple(_moved(a, setting.dtype) for a in args)
        before = taskmap.metrics()
        calls: dict[str, Call] = {"eager": _call(module, args, kwargs)}
        compiling, missing, errors = dict[str, float](), dict[str, str](), dict[str, float]()
        for name, how in OWN.items():
            own, compiling[name], why_not = _compiled(module, args, kwargs, **how)
            if own is None:
                raise RuntimeError(f"{name}: {why_not}")
            calls[name] = _call(own, args, kwargs)
            errors[name] = relative_error(as_tensors(own(*args, **kwargs)), want)
        errors["eager"] = relative_error(as_tensors(module(*args, **kwargs)), want)
        after = taskmap.metrics()
        for name, how in RIVALS.items():
            if name == "max-autotune" and deadline.left < _LONGER * compiling.get("inductor", 0.0):
                missing[name] = "left out for want of time"
                continue
            rival, seconds, why_not = _compiled(module, args, kwargs, **how)
            if rival is None:
                missing[name] = why_not
                continue
            calls[name], compiling[name] = _call(rival, args, kwargs), seconds
        found = compare(calls, "eager", graphs=False)
    best = max((name for name in found.ratios if name not in OWN), key=lambda name: found.ratios[name])
    wrong = max(errors[name] for name in OWN)
    target = machine().target
    least = roofline(counted.get_total_flops(), weight_bytes(module), setting.rate(target), target)
    return {
        "network": asdict(setting) | {"dtype": str(setting.dtype).removeprefix("torch.")},
        "timings": {engine: asdict(timing) for engine, timing in found.timings.items()},
        "ratio": found.ratios["taskmap"] / found.ratios[best],
        "best": best,
        "ratios_to_eager": dict(found.ratios),
        "floor": 1.0,
        "estimate": least,
        "estimated_by": ROOFLINE,
        "measured_over_estimate": found.timings["taskmap"].median / least,
        "compile_seconds": compiling,
        "missing": missing,
        "externs": after.externs - before.externs,
        "fallbacks": after.fallbacks - before.fallbacks,
        "relative_error": wrong,
        "errors": errors,
        "right": wrong <= max(setting.tolerance, _OF_EAGER * errors["eager"]),
        "state": dict(found.state),
    }


def weight_bytes(module: torch.nn.Module) -> int:
    """Bytes of the parameters that a call reads as a whole: not those of tables, unless a product shares them."""
    read = {p for m in module.modules() if not isinstance(m, torch.nn.Embedding) for p in m.parameters(recurse=False)}
    return sum(p.numel() * p.element_size() for p in read)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    return lambda _: function(*args, **kwargs)


def _compiled(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], **how: Any
) -> tuple[Callable[..., Any] | None, float, str]:
    """The compiled network, called so often that its CUDA graph is recorded; the seconds until its first result. Or
    None, and why not: without a C compiler or Triton, PyTorch's cannot.
    """
    made: Callable[..., Any] = torch.compile(module, **how)
    started = time.perf_counter()
    try:
        made(*args, **kwargs)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        for _ in range(3):
            made(*args, **kwargs)
        torch.cuda.synchronize()
    except Exception as failed:
        return None, 0.0, f"{type(failed).__name__}: {failed}"[:500]
    return made, seconds, ""


def _moved(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(DEVICE, dtype) if value.is_floating_point() else value.to(DEVICE)


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if a result is wrong; LOST if a kernel has ended the GPU's context."""
    cli = part_options(__doc__, 150.0, "network", 120.0)
    cli.add_argument("--seed", type=int, default=0)
    arguments = cli.parse_args(argv)
    deadline = Deadline(arguments.seconds)
    record = record_of(arguments, "gpu_networks", lambda: GpuConditions.now(arguments.seed, INPUTS, METHOD).to_dict())
    print(f"inputs: {INPUTS}", flush=True)
    cases = ((str(setting), partial(measure, setting, arguments.seed, deadline)) for setting in settings())
    if not measure_each(record, cases, deadline.over, is_lost, lambda row: print(line(row), flush=True)):
        return LOST
    print(f"networks: {summary(record.rows)}, {len(record.skipped)} left out for want of time")
    return record.status


def line(row: dict[str, Any]) -> str:
    """One record as text."""
    if "failed" in row:
        return f"FAILED  {row['name']}: {row['failed'].splitlines()[0][:300]}"
    times = "  ".join(f"{name} {timing['median'] * 1e3:.3f} ms" for name, timing in row["timings"].items())
    compiling = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in row["compile_seconds"].items())
    missing = "".join(f"; no {name}: {why}" for name, why in row["missing"].items())
    right = "" if row["right"] else f"  WRONG: relative error {row['relative_error']:.2e}"
    met = "met" if row["ratio"] >= row["floor"] else "MISSED"
    return (
        f"{met:6}  {row['name']:28} {times}  {row['ratio']:.2f}x {row['best']}, "
        f"{row['measured_over_estimate']:.2f}x the {row['estimated_by']}'s {row['estimate'] * 1e3:.3f} ms; "
        f"compiled in: {compiling}; {row['externs']} externs{missing}{right}"
    )


if __name__ == "__main__":
    sys.exit(main())
