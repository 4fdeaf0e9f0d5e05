"""Runs a GPU kernel on this machine with every access checked and counted.

found = taskmap.simulate(kernel, x, y)     kernel: made by @kernel or a Builder, for blocks of threads
print(found)                               its problems, its traffic, and its best possible time on a GPU
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.problems import Problem, ThreadPlace, simulation_error
from taskmap.backend.sim.roofline import Roofline, roofline
from taskmap.backend.sim.run import Policy, SimReport, run
from taskmap.backend.sim.structs import OF_THREADS, OF_WARPS
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import InputError
from taskmap.ir.isa.entry import Parameter
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.lower.twins import inlined, uncounted
from taskmap.ir.nodes import Buffer, Invoke, Kernel, Load, Region, TensorMap
from taskmap.ir.target import GpuTarget
from taskmap.ir.verify.rules import verify
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts
from taskmap.kernels.arguments import Arguments
from taskmap.kernels.instructions import check_target
from taskmap.options import named_gpu

Array = NDArray[Any]

_NOWHERE = ThreadPlace((0, 0, 0), (0, 0, 0), 0)
_ALIGNMENT = 16  # bytes, the widest access of a GPU
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Simulation:
    """The findings of several runs of a kernel.

    problems: empty if the kernel is right for these arguments in all orders tried. counters: of one run, by name.
    deterministic: all runs gave the same bits. footprint: bytes of the arguments' memory. unknown: micro-kernels whose
    cost is unknown here, because they have no twin: the counters are those of their specs, executed in their place.
    """

    source: CudaSource
    gpu: GpuTarget
    problems: tuple[Problem, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    deterministic: bool = True
    footprint: int = 0
    runs: int = 0
    unknown: tuple[str, ...] = ()

    def roofline(self, gpu: str | None = None) -> Roofline:
        """A lower bound on the kernel's time on a GPU, by default the one that it was generated for.

        Raises InvalidOptionError for an unknown GPU.
        """
        return roofline(self.counters, self.footprint, named_gpu(gpu) if gpu else self.gpu)

    def check(self) -> None:
        """Raise SimulationError if there are problems."""
        if self.problems:
            raise simulation_error(self.source.symbol, self.problems)

    def __str__(self) -> str:
        c = self.counters
        what = f"{len(self.problems)} problems" if self.problems else "no problems"
        order = "" if self.deterministic else "; results depend on the order of threads"
        lines = [f"{self.source.symbol}: {what} in {self.runs} orders of threads{order}"]
        lines += [f"  {line}" for problem in self.problems for line in str(problem).splitlines()]
        if not c:
            return "\n".join(lines)
        if self.unknown:
            lines.append(f"  unknown here: the cost of {', '.join(self.unknown)}; counted is the spec in its place")
        shared = self.source.shared_bytes
        lines.append(f"  {c['blocks']} blocks of {self.source.threads} threads, {shared} bytes of shared memory")
        for space, cost, best in (("global", "sectors", "global ideal"), ("shared", "wavefronts", "shared ideal")):
            costs = c[f"{space} {cost}"]
            share = f", {costs / c[best]:.2f} of the fewest possible" if c[best] else ""
            moved = f"{c[f'{space} read']} bytes read, {c[f'{space} written']} written"
            lines.append(f"  {space} memory: {moved}, {costs} {cost}{share}")
        for who, kinds in (("warps", OF_WARPS), ("threads", OF_THREADS)):
            executed = [f"{c[name]} {name}" for name in kinds if c[name]]
            if executed:
                lines.append(f"  instructions of {who}: {', '.join(executed)}")
        lines += [f"  {line}" for line in str(self.roofline()).splitlines()]
        return "\n".join(lines)


def simulate(
    kernel: Kernel,
    *tensors: Any,
    gpu: str = "H200",
    seeds: Sequence[int] = (0, 1, 2),
    policies: Sequence[Policy] = ("late", "early"),
    seconds: float = 60.0,
    steps: int = 0,
    cache_dir: str | Path | None = None,
    **sizes: int,
) -> Simulation:
    """Run a kernel of a GPU in the simulator; it writes its outputs in place.

    kernel: verified, then lowered for ``gpu``, a product name or an instruction set. tensors: torch tensors on the CPU,
    or numpy arrays, one for each parameter. seeds: orders of threads and blocks, each tried with every policy, which
    decides whether asynchronous copies land as late or as early as possible. steps: a run is ended after this many
    checked accesses, waits and polls, however fast the machine is; 0: never. seconds: a limit on processor time, as a
    last guard. sizes: those not given by any tensor's shape, by name.

    Outputs that the kernel does not read are filled with 0xff bytes first; reading them is a problem, too. Raises
    InputError for arguments that do not fit, VerifyError, LoweringError and CodegenError for kernels that cannot be
    compiled, and CompilerNotFoundError without a C++ compiler; problems of a run are in ``problems``.
    """
    if not isinstance(kernel, Kernel) or kernel.launch is None:
        raise InputError(
            f"cannot simulate {getattr(kernel, 'name', kernel)!r}",
            why="it is not a kernel for thread blocks of a GPU.",
            hint="Decorate a function with @kernel(grid=..., threads=...), from taskmap.ir.script.read.",
        )
    verify(kernel)
    target = named_gpu(gpu)
    check_target(kernel, target)
    lowered = lower(inlined(kernel, texts=True), target=target)
    source = generate(lowered, target)
    call = Arguments(kernel, "cpu", _ALIGNMENT).bind(tensors, sizes)
    if call is None:
        return Simulation(source, target, ())
    buffers = [_memory(address, end) for address, end in zip(call.addresses, _ends(kernel, tensors), strict=True)]
    arrays = [m.view(_WORDS[b.dtype.bytes]) for m, b in zip(buffers, kernel.buffers, strict=True)]
    store = KernelStore(None if cache_dir is None else Path(cache_dir))
    runs = _Runs(source, arrays, call.sizes, _only_written(lowered), store, seconds, steps)
    for policy, seed in itertools.product(policies, seeds):
        runs.add(seed, policy)
    call.written()
    footprint, count = sum(array.nbytes for array in arrays), len(runs.reports)
    found = runs.problems(), runs.counters(), runs.deterministic
    return Simulation(source, target, *found, footprint, count, uncounted(kernel))


@dataclass(slots=True)
class _Runs:
    """Runs of one kernel, each from the same arguments."""

    source: CudaSource
    arrays: list[Array]
    sizes: Sequence[int]
    outputs: list[int]
    store: KernelStore
    seconds: float
    steps: int
    reports: list[SimReport] = field(default_factory=list)
    deterministic: bool = True
    out_of_range: bool = False
    _before: list[Array] = field(init=False)
    _first: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before = [array.copy() for array in self.arrays]

    def add(self, seed: int, policy: Policy) -> None:
        for array, before in zip(self.arrays, self._before, strict=True):
            array[:] = before
        flag = np.zeros(1, np.int32)
        arrays = [*self.arrays, flag] if self.source.needs_error else self.arrays
        report = run(
            self.source,
            arrays,
            self.sizes,
            seed=seed,
            policy=policy,
            outputs=self.outputs,
            raises=False,
            seconds=self.seconds,
            steps=self.steps,
            store=self.store,
        )
        self.reports.append(report)
        self.out_of_range |= bool(flag[0])
        self._first = self._first or [array.copy() for array in self.arrays]
        self.deterministic &= all((a == b).all() for a, b in zip(self.arrays, self._first, strict=True))

    def problems(self) -> tuple[Problem, ...]:
        """The problems of all runs, each once."""
        known: dict[tuple[object, ...], Problem] = {}
        for problem in (p for report in self.reports for p in report.problems):
            key = problem.kind, problem.place.line, problem.other.line if problem.other else None
            known.setdefault(key, problem)
        if self.out_of_range:
            known[()] = Problem("index out of range", "an index of the data lies outside its dimension", _NOWHERE)
        return tuple(known.values())

    def counters(self) -> Mapping[str, int]:
        return self.reports[0].counters if self.reports else {}


def _ends(kernel: Kernel, tensors: Sequence[Any]) -> list[int]:
    """One past the last byte of each argument."""
    ends: list[int] = []
    for buffer, tensor in zip(kernel.buffers, tensors, strict=True):
        numpy = isinstance(tensor, np.ndarray)
        strides = [s // buffer.dtype.bytes for s in tensor.strides] if numpy else list(tensor.stride())
        start = tensor.ctypes.data if numpy else tensor.data_ptr()
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
        ends.append(start + (reach + 1) * buffer.dtype.bytes)
    return ends


def _memory(start: int, end: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))


def _only_written(kernel: Kernel) -> list[int]:
    """Numbers of the buffers that a lowered kernel writes but never reads."""
    read: set[Buffer] = set()
    for stmt in walk_stmts(kernel.body):
        read |= {e.buffer for root in stmt_exprs(stmt) for e in walk_exprs(root) if isinstance(e, Load)}
        if isinstance(stmt, Invoke):
            read |= _read_by(stmt)
    written = set(kernel.outputs)
    return [i for i, b in enumerate(kernel.buffers) if b in written and b not in read]


def _read_by(stmt: Invoke) -> set[Buffer]:
    pairs: Sequence[tuple[Parameter, Any]] = list(zip(stmt.instruction.parameters, stmt.operands, strict=True))
    return {o.buffer for p, o in pairs if isinstance(o, Region | TensorMap) and "r" in p.effect}
