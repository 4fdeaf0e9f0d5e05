"""Compiles the kernels of `make gpu` on a machine without a GPU, into a store that travels with the checkout.

python -m benchmarks.gpu.prebuild [--gpu H200 H100] [--store gpu-kernels] [--only PART[/CASE] ...] [--minutes 60]

Where the folder comes along, `make gpu` finds there what it would have compiled. A kernel's key is its text, the
compiler and its flags: what has changed since is compiled again. Operators that PyTorch would run are called on memory
that holds nothing; nothing else is computed.
"""

from __future__ import annotations

import argparse
import os
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

import taskmap
from benchmarks.gpu import cases, corners, hardware, instructions, ladder, networks
from benchmarks.gpu.parts import ROOT
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.timing import Deadline
from taskmap import torch_backend
from taskmap.archive.targets import AbsentGpu
from taskmap.backend.cuda.compile import SUFFIX, CudaCompiler
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.program.executable import TimedRun
from taskmap.backend.program.sequence import Extern
from taskmap.backend.program.structure import ExternCall, Program
from taskmap.backend.sim import run as simulator
from taskmap.backend.store.objects import KernelStore
from taskmap.compile.session import Session
from taskmap.compile.task_store import TaskStore
from taskmap.ir.target import GpuTarget, gpu_named
from taskmap.options import Options
from taskmap.targets.gpu_options import with_options
from taskmap.targets.platform import LoadedPrograms, ProgramBuilder, Programs, Show
from taskmap.util.dump import Dump
from taskmap.util.metrics import COUNTERS

Work = tuple[str, Callable[[], object]]
"""The name of something as PART/CASE, and what compiles it."""


@dataclass(slots=True, eq=False)
class Uncomputed:
    """A program that only makes its calls to PyTorch."""

    program: Program
    runs: deque[TimedRun] = field(init=False, default_factory=deque)

    def __call__(
        self, io: array[int], dims: Sequence[int], constants: array[int], extern: Extern | None = None
    ) -> None:
        """Nothing else."""
        for step in self.program.steps:
            if isinstance(step, ExternCall) and extern is not None:
                extern(step.index, io)

    def release(self) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class Compiling(AbsentGpu):
    """An absent GPU, whose kernels are only compiled."""

    def builder(self) -> CompilingBuilder:  # type: ignore[override]
        """A builder that compiles the kernels of one graph."""
        return CompilingBuilder(CudaCompiler(self.toolchain, self.store, COUNTERS.kernels))


@dataclass(frozen=True, slots=True)
class CompilingBuilder(ProgramBuilder):
    """Compiles kernels into the store."""

    compiler: CudaCompiler

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """Programs without native code."""
        made = self.compiler.finish((), show)
        return LoadedPrograms(
            {p: Uncomputed(p) for p in programs}, None, {s: binary.resources for s, binary in made.items()}
        )


def session(target: GpuTarget, options: Options, device: torch.device) -> Session:
    """A session like that of a GPU ``target``, which need not be present."""
    target = with_options(target, options)
    store = KernelStore(suffix=SUFFIX)
    platform = Compiling(options, target, find_cuda_toolchain(target.isa, fast_math=options.fast_math), store)
    return Session(options, platform, TaskStore(store.path / "tasks"))


def here(target: GpuTarget) -> None:
    """Within the block this process only compiles for ``target`` instead of running, and draws no numbers."""

    def undrawn(*shape: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype)

    modules: tuple[Any, Any, Any] = torch_backend, hardware, cases
    modules[0].new_session = partial(session, target)
    machine = hardware.Machine(None, target, KernelStore(suffix=SUFFIX), "cpu")  # type: ignore[arg-type]
    modules[1].machine = lambda: machine
    modules[2].randn, modules[2].DEVICE = undrawn, "cpu"
    simulator.run = hardware.run


def works(target: GpuTarget) -> Iterator[Work]:
    """The work, in the order in which `make gpu` needs it."""
    for rung in ladder.rungs():
        yield f"ladder/{rung.name}", rung.run
    for section, every in SECTIONS.items():
        for case in every():
            yield f"{section}/{case.name}", partial(_figure, case)
    for setting in networks.settings():
        yield f"networks/{setting}", partial(_network, setting)
    for name, check in corners.corner_cases(target.isa):
        yield f"corners/{name}", check
    store = KernelStore()
    for work in instructions.works(target, every=True):
        yield f"instructions/{work.name}", partial(work.run, store)


def _figure(case: cases.Case) -> None:
    torch._dynamo.reset()
    for one in filter(None, (case, case.of_own)):
        with torch.no_grad():
            for options in (one.options, None) if one.options else (None,):
                made = torch.compile(one.function, backend=torch_backend.compile_fx, dynamic=False, options=options)
                made(*one.make())


def _network(setting: networks.Setting) -> None:
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("high" if setting.tf32 else "highest")
    module, args, kwargs = setting.spec.build(0)
    args = tuple(a.repeat(setting.batch, *[1] * (a.dim() - 1)) if isinstance(a, torch.Tensor) else a for a in args)
    args = tuple(a.to(setting.dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
    with torch.no_grad():
        module = module.to(setting.dtype)
        torch.compile(module, backend=torch_backend.compile_fx, mode="reduce-overhead")(*args, **kwargs)
    torch.set_float32_matmul_precision("highest")


def build(target: GpuTarget, only: Sequence[str], deadline: Deadline) -> tuple[int, list[str]]:
    """Compile the parts in ``only``, or all; returns the amount done, and the rest for which time was lacking."""
    here(target)
    chosen = [(n, w) for n, w in works(target) if not only or any(_matches(n, pattern) for pattern in only)]
    by_threads = [(n, w) for n, w in chosen if n.startswith(("corners/", "instructions/"))]
    left = [n for n, w in chosen if (n, w) not in by_threads and not _built(n, w, deadline)]
    done = len(chosen) - len(by_threads) - len(left)
    for _ in hardware.compiled_ahead((w for w in by_threads if not deadline.over()), os.cpu_count()):
        done += 1
    return done, left


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.partition("/")[0], pattern)


def _built(name: str, work: Callable[[], object], deadline: Deadline) -> bool:
    if deadline.over():
        return False
    before = taskmap.metrics()
    hardware.compiled_only(work)
    after = taskmap.metrics()
    new, found = after.kernels_compiled - before.kernels_compiled, after.kernels_found - before.kernels_found
    print(f"  {name}: {new} kernels compiled, {found} found", flush=True)
    return True


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if time ran out."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--gpu", nargs="+", default=["H200", "H100"], help="products that taskmap knows by name")
    cli.add_argument("--store", type=Path, default=ROOT / "gpu-kernels")
    cli.add_argument("--only", nargs="+", default=[], metavar="PART[/CASE]", help="with * and ? for any")
    cli.add_argument("--minutes", type=float, default=60.0, help="after these nothing more is begun")
    arguments = cli.parse_args(argv)
    deadline = Deadline(60 * arguments.minutes)
    os.environ["TASKMAP_CACHE_DIR"] = str(arguments.store.resolve())
    every: list[str] = []
    for name in arguments.gpu:
        done, left = build(gpu_named(name), arguments.only, deadline)
        every += left
        print(f"{name}: {done} compiled, {len(left)} left for want of time", flush=True)
    size = sum(path.stat().st_size for path in arguments.store.rglob("*") if path.is_file())
    print(f"{taskmap.metrics().kernels_compiled} new kernels; {arguments.store} has {size / (1 << 20):.0f} MiB")
    return int(bool(every))


if __name__ == "__main__":
    sys.exit(main())
