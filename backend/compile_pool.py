"""Kernels from a store, or compiled in parallel while others are still being generated; the same for every target."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from taskmap.backend.compilers import Progress, usable_cpus
from taskmap.backend.counters import Counters
from taskmap.ir.errors import TaskmapError
from taskmap.ir.util.waiting import each_done

_log = logging.getLogger(__name__)


class KernelText(Protocol):
    """The source of a kernel."""

    @property
    def symbol(self) -> str: ...

    def is_same_kernel(self, other: Any) -> bool:
        """True if both are compiled to the same kernel."""
        ...


S = TypeVar("S", bound=KernelText)
U = TypeVar("U")
C = TypeVar("C")
K = TypeVar("K")


class CompilePool(ABC, Generic[S, U, C, K]):
    """Compiles sources S, in units U, to files C that hold kernels K: `add` each, then `finish` for all.

        with closing(pool):
            pool.add(source)
            kernels = pool.finish(more_sources)

    A subclass says where a kernel is found (`find`), which sources form units (`units`), how a unit is compiled
    (`compile`, in a thread), and how its kernels are stored and loaded (`adopt`). A kernel is stored as soon as it is
    ready, so the next pool continues an interrupted one.
    """

    def __init__(self, counters: Counters, jobs: int | None, threads: str) -> None:
        """``jobs``: compilations at once, by default one per CPU; ``threads``: the name of their threads."""
        self.jobs = jobs or usable_cpus()
        self._counters, self._threads = counters, threads
        self._executor: ThreadPoolExecutor | None = None
        self._wanted: dict[str, S] = {}
        self._made: dict[str, K] = {}
        self._pending: list[S] = []
        self._running: dict[Future[C], U] = {}
        self._started = 0.0

    @abstractmethod
    def find(self, source: S) -> K | None:
        """The kernel, if it has been compiled before."""

    @abstractmethod
    def units(self, pending: list[S], last: bool) -> Sequence[U]:
        """Takes sources out of ``pending``, and returns the units that they form; the others wait for more.

        ``last``: no more will come, so all are taken.
        """

    @abstractmethod
    def compile(self, unit: U) -> C:
        """Compiles a unit, in a thread. Raises CompilerFailedError."""

    @abstractmethod
    def adopt(self, unit: U, compiled: C) -> Mapping[str, K]:
        """The kernels of a compiled unit by symbol, stored and loaded. Raises CompilerFailedError."""

    def __len__(self) -> int:
        """The number of kernels wanted so far."""
        return len(self._wanted)

    def add(self, source: S) -> None:
        """Requests a kernel. Raises ValueError if its symbol stands for another source already."""
        known = self._wanted.get(source.symbol)
        if known is not None:
            if not known.is_same_kernel(source):
                raise ValueError(f"two different kernels are called {source.symbol}")
            return
        self._wanted[source.symbol] = source
        started = perf_counter()
        found = self.find(source)
        self._counters.add(kernels_found=found is not None, lookup_seconds=perf_counter() - started)
        _log.debug("%s: %s", source.symbol, "in the store" if found is not None else "to be compiled")
        if found is not None:
            self._made[source.symbol] = found
            return
        self._pending.append(source)
        self._start(last=False)

    def refused(self, progress: Progress | None = None) -> dict[str, TaskmapError]:
        """By symbol, the reasons why added kernels need more of the hardware than it has. These are forgotten: others
        may be added in their place."""
        return {}

    def finish(self, sources: Sequence[S] = (), progress: Progress | None = None) -> Mapping[str, K]:
        """All kernels: ``sources``, and those that were added before. Raises CompilerFailedError."""
        for source in sources:
            self.add(source)
        self._start(last=True)
        try:
            self._collect(progress)
        finally:
            if self._started:
                self._counters.add(compile_seconds=perf_counter() - self._started)
        for error in self.refused(progress).values():
            raise error
        return {symbol: self._made[symbol] for symbol in self._wanted}

    def close(self) -> None:
        """Cancels compilations that have not started, and waits for the others."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def _start(self, last: bool) -> None:
        units = self.units(self._pending, last) if self._pending else ()
        if not units:
            return
        self._started = self._started or perf_counter()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.jobs, self._threads)
        for unit in units:
            self._running[self._executor.submit(self.compile, unit)] = unit

    def _collect(self, progress: Progress | None) -> None:
        """Adopts all units, as they become ready."""
        running, self._running = self._running, {}
        for future in each_done(running):
            made = self.adopt(running[future], future.result())
            self._made.update(made)
            if made:
                self._counters.add(kernels_compiled=len(made), units_compiled=1)
            if progress is not None:
                progress(len(self._made), len(self._wanted))
