"""Runs a kernel on arrays of the host."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.tensor_map import views_of
from taskmap.backend.sim import structs
from taskmap.backend.sim.building import SimKernel, build_kernel, engine
from taskmap.backend.sim.lines import lines_of
from taskmap.backend.sim.problems import KINDS, Problem, ThreadPlace, simulation_error
from taskmap.backend.sim.tensor_map import encode
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import InputError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Var

__all__ = ["SimReport", "run"]

Array = NDArray[Any]
Policy = Literal["late", "early"]
_MOST_PROBLEMS = 64
_DECLARED = re.compile(r"tm_shared<[^>]*>\s+(\w+)\s*=")
_PARAMETER = re.compile(
    r"tm_global<\s*(const\s+)?(\w+(?: \w+)*)\s*>\s+(\w+)|(tm_tensor_map)\s+(\w+)|(long long)\s+(\w+)"
)
_BYTES = re.compile(r"tm_shared_at<(?:signed char|unsigned char|bool|tm_e\dm\d)>")
_POISON = 0xFF
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class SimReport:
    """The result of a run: problems (none: the kernel is correct, for these sizes), and counters by name."""

    symbol: str
    problems: tuple[Problem, ...]
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel's text. kind: "pointer", "size" or "map"; type: a pointer's element type."""

    name: str
    kind: str
    type: str = ""
    read_only: bool = False


def run(
    source: CudaSource,
    arrays: Sequence[Array],
    dims: Mapping[Var, int] | Sequence[int] = (),
    *,
    seed: int = 0,
    policy: Policy = "late",
    checks: bool = True,
    counters: bool = True,
    outputs: Sequence[int] = (),
    raises: bool = True,
    seconds: float = 60.0,
    steps: int = 0,
    store: KernelStore | None = None,
) -> SimReport:
    """Runs a kernel on ``arrays``, one for each pointer parameter in order, contiguous, changed in place. Memory
    private to the launch is allocated here.

    bf16 and fp8 are arrays of uint16 and uint8. An `error` parameter, the last, needs an int32 array of one element.
    seed: the order of blocks and threads; 0 ascending, 1 descending, others random. policy: whether asynchronous copies
    land when something waits for them, or at once. outputs: numbers of uninitialised arrays; they are filled with 0xff
    bytes, and reading them before they are written is a problem. raises: raise SimulationError for problems. steps:
    checked accesses, waits and polls after which a run is ended (0: never), the same on every machine; seconds: of
    processor time, the last guard against infinite loops.
    """
    kernel = build_kernel(source, store, checked=checks)
    sizes = _sizes(source, dims)
    parameters = parameters_of(source)
    own = [np.empty(size, np.uint8) for size in source.workspace]
    own += [np.zeros(size // 4, np.int32) for size in source.counters]
    wanted = sum(p.kind == "pointer" for p in parameters) - len(own)
    if len(arrays) != wanted:
        raise InputError(f"{source.symbol} takes {wanted} arrays, not {len(arrays)}")
    for number in outputs:
        arrays[number].reshape(-1).view(np.uint8)[:] = _POISON
    last = len(arrays) - source.needs_error
    arrays = [*arrays[:last], *own, *arrays[last:]]
    placed = _placed(arrays)
    uninitialised = {*outputs, *range(last, last + len(source.workspace))}
    call = _Call(kernel, parameters, placed, tuple(sizes.values()), uninitialised)
    grid = tuple(size_of(d, sizes) for d in source.grid)
    try:
        report = call.run(grid, seed, policy == "late", counters, seconds, steps, raises=raises)
        if source.counters and not report.problems:
            report = _with_counters(report, placed[last + len(source.workspace) : last + len(own)], raises=raises)
        return report
    finally:
        for array, copy in zip(arrays, placed, strict=True):
            if array.flags.writeable:
                array[...] = copy


def parameters_of(source: CudaSource) -> list[Parameter]:
    """The parameters of the kernel's text."""
    start = source.text.index(f"{source.symbol}(")
    signature = source.text[start : source.text.index("{", start)]
    found: list[Parameter] = []
    for const, kind, name, _, name_of_map, _, name_of_size in _PARAMETER.findall(signature):
        if name:
            found.append(Parameter(name, "pointer", kind, bool(const)))
        else:
            found.append(Parameter(name_of_map or name_of_size, "map" if name_of_map else "size"))
    return found


def _sizes(source: CudaSource, dims: Mapping[Var, int] | Sequence[int]) -> dict[Var, int]:
    given = dict(dims) if isinstance(dims, Mapping) else dict(zip(source.dims, dims, strict=True))
    missing = [d.name for d in source.dims if d not in given]
    if missing:
        raise InputError(f"{source.symbol} needs the size of {', '.join(missing)}")
    return {d: int(given[d]) for d in source.dims}


class _Dl(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _with_counters(report: SimReport, counters: Sequence[Array], *, raises: bool) -> SimReport:
    """The report, with a problem if the kernel does not leave its counters 0 for the next launch."""
    left = [int(n) for array in counters for n in array[array != 0]]
    if not left:
        return report
    what = f"the kernel ends with {len(left)} counters that are not 0"
    problems = (*report.problems, Problem("misuse", what, ThreadPlace((0, 0, 0), (0, 0, 0), 0)))
    if raises:
        raise simulation_error(report.symbol, problems)
    return replace(report, problems=problems)


def _base_of(address: int) -> int:
    """The base address of the shared object that contains an address."""
    found = _Dl()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found))
    return found.base or 0


class _Call:
    """The arguments of one launch, kept alive while it runs."""

    def __init__(
        self,
        kernel: SimKernel,
        parameters: Sequence[Parameter],
        arrays: Sequence[Array],
        sizes: Sequence[int],
        outputs: set[int],
    ) -> None:
        self.kernel = kernel
        self._arrays = arrays
        pointers = [p for p in parameters if p.kind == "pointer"]
        mapped = {m.buffer for m in kernel.source.maps}
        regions = _regions_of(arrays)
        self.regions = (structs.Region * max(len(regions), 1))()
        self.region_count = len(regions)
        for region, members in zip(self.regions, regions, strict=False):
            region.base = min(_start(arrays[i]) for i in members)
            region.bytes = max(_start(arrays[i]) + arrays[i].nbytes for i in members) - region.base
            region.granule = min(arrays[i].itemsize for i in members)
            region.initialised = not any(i in outputs for i in members)
            region.tracked = any(not pointers[i].read_only or i in mapped for i in members)
        number_of = {i: n for n, members in enumerate(regions) for i in members}
        self.bounds = (structs.Bounds * max(len(arrays), 1))()
        for i, (parameter, array) in enumerate(zip(pointers, arrays, strict=True)):
            b = self.bounds[i]
            b.low, b.high = _start(array), _start(array) + array.nbytes
            b.region, b.name = number_of[i] + 1, parameter.name.encode()
        by_kind: dict[str, Iterator[Any]] = {
            "pointer": (structs.Argument(b.low, ctypes.pointer(b)) for b in self.bounds),
            "size": (ctypes.c_longlong(size) for size in sizes),
            "map": self._maps(sizes),
        }
        self._values = [next(by_kind[p.kind]) for p in parameters]
        self.arguments = (ctypes.c_void_p * max(len(self._values), 1))(
            *(ctypes.addressof(value) for value in self._values)
        )

    def _maps(self, sizes: Sequence[int]) -> Iterator[structs.TensorMap]:
        maps = self.kernel.source.maps
        views = views_of(maps, self.kernel.source.dims)([b.low for b in self.bounds], sizes)
        return (encode(view, self.bounds[m.buffer]) for m, view in zip(maps, views, strict=True))

    def run(
        self, grid: Sequence[int], seed: int, late: bool, counted: bool, seconds: float, steps: int, *, raises: bool
    ) -> SimReport:
        source = self.kernel.source
        entry = self.kernel.entry
        launch = structs.Run(
            entry=entry,
            arguments=self.arguments,
            regions=self.regions,
            module=_base_of(entry),
            seconds=seconds,
            steps=steps,
            region_count=self.region_count,
            grid=structs.Dim3(*(*grid, 1, 1)[:3]),
            cluster=structs.Dim3(*source.cluster),
            threads=source.threads,
            shared_bytes=source.shared_bytes,
            shared_granule=1 if _BYTES.search(source.text) else 2,
            seed=seed,
            late=late,
            checked=self.kernel.checked,
            counted=counted,
            workers=1,
        )
        found = (structs.FoundProblem * _MOST_PROBLEMS)()
        counted_values = structs.Counted()
        number = 0
        if all(grid):
            number = engine().tm_sim_run_grid(
                ctypes.byref(launch),
                self.bounds,
                ctypes.c_uint32(len(self._arrays)),
                found,
                ctypes.c_uint32(_MOST_PROBLEMS),
                ctypes.byref(counted_values),
            )
        problems = _problems(found[:number], source, self.kernel.path)
        if problems and raises:
            raise simulation_error(source.symbol, problems)
        return SimReport(source.symbol, problems, _counters(counted_values))


def _start(array: Array) -> int:
    if not array.flags.c_contiguous:
        raise InputError("the simulator takes contiguous arrays", hint="Use numpy.ascontiguousarray.")
    return int(array.ctypes.data)


def _placed(arrays: Sequence[Array]) -> list[Array]:
    """Copies aligned as on a GPU: each memory begins at a multiple of 256 bytes. Overlaps are preserved."""
    placed: dict[int, Array] = {}
    for members in _regions_of(arrays):
        first = min(_start(arrays[i]) for i in members)
        size = max(_start(arrays[i]) + arrays[i].nbytes for i in members) - first
        room = np.empty(size + _ALIGNMENT, np.uint8)
        base = -int(room.ctypes.data) % _ALIGNMENT
        for i in members:
            at = base + _start(arrays[i]) - first
            placed[i] = room[at : at + arrays[i].nbytes].view(arrays[i].dtype).reshape(arrays[i].shape)
            placed[i][...] = arrays[i]
    return [placed[i] for i in range(len(arrays))]


def _regions_of(arrays: Sequence[Array]) -> list[list[int]]:
    """Numbers of arrays whose memory overlaps, together."""
    regions: list[list[int]] = []
    end = -1
    for i in sorted(range(len(arrays)), key=lambda i: _start(arrays[i])):
        if regions and _start(arrays[i]) < end:
            regions[-1].append(i)
        else:
            regions.append([i])
        end = max(end, _start(arrays[i]) + arrays[i].nbytes)
    return regions


def _problems(found: Sequence[structs.FoundProblem], source: CudaSource, path: Path) -> tuple[Problem, ...]:
    lines = lines_of({s for p in found for s in (p.site, p.other_site)}, source.symbol, path)
    text = source.text.splitlines()

    def place(block: structs.Dim3, thread: structs.Dim3, site: int) -> ThreadPlace:
        line = lines.get(site, 0)
        code = text[line - 1].strip() if 0 < line <= len(text) else ""
        return ThreadPlace((block.x, block.y, block.z), (thread.x, thread.y, thread.z), line, code)

    merged: dict[tuple[object, ...], Problem] = {}
    for p in found:
        at = place(p.block, p.thread, p.site)
        other = place(p.other_block, p.other_thread, p.other_site) if p.has_other else None
        problem = Problem(KINDS[p.kind], _with_names(p.text.decode(errors="replace"), text), at, other, p.count)
        # One line may have several accesses; if no line is known they are kept apart.
        key = (p.kind, at.line or p.site, (other.line or p.other_site) if other else -1)
        known = merged.setdefault(key, problem)
        if known is not problem:
            merged[key] = replace(known, count=known.count + p.count)
    return tuple(merged.values())


def _with_names(words: str, text: Sequence[str]) -> str:
    """Shared-memory buffers by their names: the engine knows only the lines that declare them, as @12."""

    def name(match: re.Match[str]) -> str:
        declared = _DECLARED.search(text[int(match[1]) - 1]) if int(match[1]) <= len(text) else None
        return declared[1] if declared else "shared memory"

    return re.sub(r"@(\d+)", name, words)


def _counters(counted: structs.Counted) -> dict[str, int]:
    values = {name: int(n) for name, n in zip(structs.INSTRUCTION_KINDS, counted.instructions, strict=True)}
    rest = (name for name, *_ in structs.Counted._fields_ if name != "instructions")
    return values | {name.replace("_", " "): int(getattr(counted, name)) for name in rest}
