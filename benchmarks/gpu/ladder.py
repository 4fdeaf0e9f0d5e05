"""The first two minutes on a GPU: one more part of the machinery per rung, each in a process of its own.

python -m benchmarks.gpu.ladder --rung "TMA copy" [--out FOLDER]

A failing rung shows where to look: at the part that it uses and the previous rung does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.gpu import cases, hardware, instructions
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.conditions import GpuConditions
from benchmarks.gpu.estimates import estimate
from benchmarks.gpu.kernels import error
from benchmarks.gpu.parts import CASE_SECONDS
from benchmarks.gpu.record import LOST, WRONG, measured
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.timing import seconds_of
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim import run as simulator
from taskmap.backend.store.objects import KernelStore
from taskmap.torch_backend import compile_fx

Row = dict[str, Any]
_SCALE = """extern "C" __global__ void __launch_bounds__(256) scale(tm_global<const float> a, tm_global<float> b)
{
  const int i = blockIdx.x * 256 + threadIdx.x;
  b[i] = 2.0f * a[i];
}
"""


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung: ``run`` raises, or returns the error. adds: the parts that no earlier rung uses."""

    name: str
    adds: str
    run: Callable[[], Row]


def rungs() -> tuple[Rung, ...]:
    """From one kernel without shared memory to a model."""
    return (
        Rung("pointwise kernel", "NVRTC's machine code, the driver, a launch, PyTorch's memory", _pointwise),
        Rung("mma product", "shared memory, mma.sync", partial(_instruction, "products-mma_m16n8k16_f16_f32")),
        Rung("TMA copy", "a tensor map, an mbarrier", partial(_instruction, "boxes_of_tensors-tma_load_2d-128")),
        Rung("wgmma without TMA", "wgmma's descriptors", partial(_instruction, "a_product_is_waited_for")),
        Rung("Hopper product 1024", "TMA, mbarriers and wgmma in one pipeline", partial(_case, "matmul", "f16 1024")),
        Rung("product 8192", "persistent blocks, two consumer groups, setmaxnreg, TMA stores",
             partial(_case, "matmul", "f16 8192")),
        Rung("attention", "wgmma with operands in registers", partial(_case, "attention", "f16 4096")),
        Rung("split-K", "memory of a launch's own, counters, the last block", partial(_case, "matmul",
             "f16 64x512x16384")),
        Rung("small model", "torch.compile, constants, CUDA graphs", _model),
    )  # fmt: skip


def _pointwise() -> Row:
    a, b = np.random.default_rng().standard_normal(4096).astype(np.float32), np.zeros(4096, np.float32)
    hardware.run(CudaSource("scale", _SCALE, ("base", "portable"), False, (16,), 256, 0, ()), [a, b], outputs=[1])
    return {"right": bool(np.array_equal(b, 2 * a))}


def _instruction(name: str) -> Row:
    """A check of the test suite, on the GPU."""
    target = hardware.machine().target
    work = next((w for w in instructions.works(target, every=False) if w.name == name), None)
    if work is None:
        return {"right": True, "note": f"{target.isa} has no such instruction"}
    work.run(KernelStore())
    return {"right": True}


def case_named(section: str, name: str) -> cases.Case:
    """A case of the figures."""
    return next(case for case in SECTIONS[section]() if case.name == name)


def _case(section: str, name: str) -> Row:
    """A case of the figures: its error, and a first time against PyTorch and the estimate."""
    case = case_named(section, name)
    inputs = case.make()
    with torch.no_grad():
        compiled = torch.compile(case.function, backend=compile_fx, dynamic=False)
        wrong = error(case, compiled, inputs)
        own, other = seconds_of(lambda: compiled(*inputs)), seconds_of(lambda: case.function(*inputs))
    thought, by = estimate(case, hardware.machine().target)
    return {
        "right": wrong <= case.tolerance, "relative_error": wrong, "seconds": own, "tflops": case.flops / own / 1e12,
        "to_torch": other / own, "estimate": thought, "estimated_by": by, "measured_over_estimate": own / thought,
    }  # fmt: skip


def _model() -> Row:
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 10), nn.Softmax(-1)).eval()
    model = model.to(cases.DEVICE, torch.float16)
    worst = 0.0
    with torch.no_grad():
        compiled = torch.compile(model, backend=compile_fx, mode="reduce-overhead")
        for _ in range(4):
            x = cases.randn(48, 64)
            got, want = compiled(x).double(), model.double()(x.double())
            model.half()
            worst = max(worst, float((got - want).norm() / want.norm()))
    return {"right": worst <= 5e-3, "relative_error": worst}


def line(row: Row) -> str:
    """One row as text."""
    if "failed" in row:
        return f"FAILED  {row['name']}: {row['failed'][:600]}"
    found = (
        f"{row['seconds'] * 1e6:10.1f} us {row['tflops']:6.0f} TFLOP/s {row['to_torch']:.2f}x torch, "
        f"{row['measured_over_estimate']:.2f}x the {row['estimated_by']}'s {row['estimate'] * 1e6:.1f} us"
        if "seconds" in row
        else ""
    )
    wrong = f"  relative error {row['relative_error']:.1e}" if "relative_error" in row else ""
    return f"{'right ' if row['right'] else 'WRONG '}  {row['name']:22}{found}{wrong}{row.get('note', '')}"


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or WRONG; LOST if a kernel has ended the GPU's context."""
    cli = part_options(__doc__, CASE_SECONDS, "rung", CASE_SECONDS)
    cli.add_argument("--rung", required=True, choices=[rung.name for rung in rungs()])
    arguments = cli.parse_args(argv)
    record = record_of(arguments, "gpu_ladder", lambda: GpuConditions.now(0, "random", "one process a rung").to_dict())
    simulator.run = hardware.run
    (rung,) = (rung for rung in rungs() if rung.name == arguments.rung)
    usable = measured(record, rung.name, lambda: {**rung.run(), "adds": rung.adds}, hardware.is_lost)
    record.write()
    row = record.rows[-1]
    print(line(row), flush=True)
    return LOST if not usable else 0 if row["right"] else WRONG


def names() -> Iterator[str]:
    """The names of the rungs, lowest first."""
    return (rung.name for rung in rungs())


if __name__ == "__main__":
    sys.exit(main())
