"""Launching a program's kernels on a GPU: arguments in prepared arrays, on the caller's current stream."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from taskmap.backend.cuda.driver import Driver, LoadedKernel
from taskmap.backend.cuda.encoded_map import EncodedMap
from taskmap.backend.cuda.own_memory import OWN_ALIGNMENT, OwnMemory, own_memory
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.tensor_map import TensorView, Views, views_of
from taskmap.backend.program.sizes import SizesFunction, sizes_function
from taskmap.backend.program.structure import Launch, Program
from taskmap.ir.errors import IndexOutOfRangeError

Memory = tuple[int, object]
"""An address on the device, and the owner that keeps the memory alive."""


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """The caller's memory allocator (bytes to an address), and the number of its current stream."""

    allocate: Callable[[int], Memory]
    stream: Callable[[], int]


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """A loaded kernel with its launch parameters."""

    source: CudaSource
    loaded: LoadedKernel


class LaunchArguments:
    """The arguments of one launch: their values, and the addresses of these, which the driver reads."""

    __slots__ = ("_maps", "_pointers", "_views", "config", "parameters", "values")

    def __init__(self, source: CudaSource, buffers: int, flag: int, config: Any) -> None:
        """``flag``: the address of the error flag, for a kernel that takes one."""
        self.config = config
        count = buffers + len(source.workspace) + len(source.counters) + len(source.dims)
        self.values = array("q", [*([0] * count), flag])
        start = self.values.buffer_info()[0]
        where = [start + 8 * i for i in range(count)] + [0] * len(source.maps)
        self._pointers = array("q", where + ([start + 8 * count] if source.needs_error else []))
        self.parameters = self._pointers.buffer_info()[0]
        self._maps: list[EncodedMap] = []
        self._views: tuple[TensorView, ...] = ()

    def fill(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Puts values into the array, which stays in place because it keeps its length."""
        self.values[:-1] = array("q", (*addresses, *sizes))

    def map(self, views: tuple[TensorView, ...], make: Callable[[TensorView], EncodedMap]) -> None:
        """Makes the tensor maps, unless they are those of the last launch."""
        if views != self._views:
            self._maps = [make(view) for view in views]
            first = len(self.values) - 1
            for i, made in enumerate(self._maps):
                self._pointers[first + i] = made.address
            self._views = views


@dataclass(slots=True, eq=False)
class CudaLauncher:
    """Launches the kernels of one program on device number ``device``.

    A kernel with an error flag writes it to host memory, which is checked before the next run: waiting for each run
    would cost more than most runs take. Under CUDA_LAUNCH_BLOCKING=1 every launch is waited for.
    """

    program: Program
    kernels: Mapping[str, DeviceKernel]
    driver: Driver
    device: int
    surroundings: LaunchContext
    blocking: bool = field(default_factory=lambda: os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"))
    _grids: dict[str, SizesFunction] = field(init=False)
    _own: OwnMemory = field(init=False)
    _views: dict[str, Views] = field(init=False)
    _flags: ctypes.Array[ctypes.c_int] | None = field(init=False, default=None)
    _flagged: dict[int, int] = field(init=False)
    _frames: list[dict[int, LaunchArguments]] = field(init=False, default_factory=list)
    _allowed: bool = field(init=False, default=False)
    _lock: Lock = field(init=False, default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        used = {symbol: self.kernels[symbol].source for symbol in self.program.symbols}
        self._grids = {symbol: sizes_function(source.grid, source.dims) for symbol, source in used.items()}
        self._views = {symbol: views_of(source.maps, source.dims) for symbol, source in used.items() if source.maps}
        self._own = own_memory(used)
        steps = [n for n, s in enumerate(self.program.steps) if isinstance(s, Launch) and s.needs_error]
        self._flagged = {step: i for i, step in enumerate(steps)}

    def begin(self, arena_bytes: int, out_of_range: Callable[[int], IndexOutOfRangeError]) -> CudaCall:
        """A run of the program. Raises IndexOutOfRangeError if an earlier run has indexed out of range."""
        self.driver.ensure_context(self.device)
        if not self._allowed:
            self.driver.refuse_capture(self.surroundings.stream())
            self._prepare()
        self.check(out_of_range)
        own = -(-arena_bytes // OWN_ALIGNMENT) * OWN_ALIGNMENT
        needed = own + self._own.bytes if self._own.bytes else arena_bytes
        memory = self.surroundings.allocate(needed) if needed else (0, None)
        stream = self.surroundings.stream()
        if self._own.cleared:
            self.driver.clear(memory[0] + own, self._own.cleared, stream)
        try:
            frames = self._frames.pop()  # atomic: two threads never get the same one
        except IndexError:
            frames = self._new_frames()
        return CudaCall(self, frames, memory, stream, memory[0] + own, out_of_range)

    def check(self, out_of_range: Callable[[int], IndexOutOfRangeError]) -> None:
        """Raises the error of a kernel that has met an index out of range, once."""
        if self._flags is None or not any(self._flags):
            return
        step = next(step for step, i in self._flagged.items() if self._flags[i])
        ctypes.memset(self._flags, 0, ctypes.sizeof(self._flags))
        raise out_of_range(step)

    def _prepare(self) -> None:
        with self._lock:
            for symbol in self.program.symbols:
                kernel = self.kernels[symbol]
                self.driver.allow(kernel.loaded, self.device, kernel.source.shared_bytes, kernel.source.cluster)
            if self._flagged and self._flags is None:
                self._flags = self.driver.host_words(len(self._flagged))
            self._allowed = True

    def _new_frames(self) -> dict[int, LaunchArguments]:
        flags = 0 if self._flags is None else ctypes.addressof(self._flags)
        frames: dict[int, LaunchArguments] = {}
        for number, step in enumerate(self.program.steps):
            if not isinstance(step, Launch):
                continue
            source = self.kernels[step.symbol].source
            config = self.driver.launch_config(source.threads, source.shared_bytes, source.cluster, waits=source.waits)
            flag = flags + 4 * self._flagged[number] if step.needs_error else 0
            frames[number] = LaunchArguments(source, len(step.buffers), flag, config)
        return frames


class CudaCall:
    """One run: launches go to the stream in order and are not waited for."""

    def __init__(
        self,
        launcher: CudaLauncher,
        frames: dict[int, LaunchArguments],
        memory: Memory,
        stream: int,
        own: int,
        out_of_range: Callable[[int], IndexOutOfRangeError],
    ) -> None:
        self.launcher, self.stream, self.arena, self._own = launcher, stream, memory[0], own
        self._memory = memory[1]  # freed when the run is over: the allocator knows the order of the stream
        self._frames, self._out_of_range = frames, out_of_range
        self._queue = launcher.driver.api.CUstream(stream)

    def launch(self, step: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Launch the kernel of a step, unless its grid is empty."""
        launcher, frame = self.launcher, self._frames[step]
        symbol = launcher.program.steps[step].symbol  # type: ignore[union-attr]  # only launches come here
        grid = launcher._grids[symbol](sizes)
        if 0 in grid:
            return
        if symbol in launcher._own.offsets:
            addresses = [*addresses, *(self._own + at for at in launcher._own.offsets[symbol])]
        frame.fill(addresses, sizes)
        if symbol in launcher._views:
            frame.map(launcher._views[symbol](addresses, sizes), lambda v: launcher.driver.tensor_map(v, symbol))
        config = frame.config
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.hStream = self._queue
        launcher.driver.launch(launcher.kernels[symbol].loaded, config, frame.parameters)
        if launcher.blocking:
            launcher.driver.synchronize(self.stream, symbol)
            launcher.check(self._out_of_range)

    def now(self) -> Any:
        """An event of the stream."""
        return self.launcher.driver.record(self.stream)

    def elapsed(self, points: Sequence[Any]) -> tuple[float, ...]:
        """The seconds between neighbouring events."""
        return self.launcher.driver.elapsed(points)

    def finish(self) -> None:
        """Returns the argument arrays: the driver has read them."""
        self.launcher._frames.append(self._frames)
