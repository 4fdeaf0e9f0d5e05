"""From CUDA sources to CUBINs: from the store, or compiled in parallel, one kernel to a translation unit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from taskmap.backend.compilers import Progress, first_lines, usable_cpus
from taskmap.backend.counters import Counters
from taskmap.backend.cuda.nvrtc import Assembled, RefusedSourceError
from taskmap.backend.cuda.resources import Resources, read_resources
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.toolchain import CudaToolchain
from taskmap.backend.store.key import KernelSource, kernel_key, key_parts
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.ir.errors import CompilerFailedError, KernelResourceError
from taskmap.ir.util.waiting import each_done

SUFFIX = ".cubin"
"""The ending of the store's files that hold machine code for GPUs."""

_RESOURCES = "resources"


@dataclass(frozen=True, slots=True)
class CudaBinary:
    """The machine code of a kernel, and its use of GPU resources."""

    source: CudaSource
    image: bytes
    resources: Resources


def compile_cuda(
    sources: Sequence[CudaSource],
    toolchain: CudaToolchain,
    store: KernelStore,
    counters: Counters,
    progress: Progress | None = None,
    *,
    jobs: int | None = None,
) -> dict[str, CudaBinary]:
    """The binaries of `sources` by symbol. Kernels that are not stored are compiled with `jobs` threads (default: one
    per CPU).

    ``store`` has the suffix SUFFIX. Raises CompilerFailedError if a source is rejected, and its subclass
    KernelResourceError if a kernel spills registers, or its tensor instructions are serialised, and its source does not
    allow it.
    """
    with closing(CudaCompiler(toolchain, store, counters, jobs=jobs)) as compiler:
        for source in sources:
            compiler.add(source)
        return compiler.finish(progress)


class CudaCompiler:
    """Compiles kernels while others are still being generated: `add` each, then `finish` for all; see compile_cuda."""

    def __init__(
        self, toolchain: CudaToolchain, store: KernelStore, counters: Counters, *, jobs: int | None = None
    ) -> None:
        self._toolchain, self._store, self._counters = toolchain, store, counters
        self._executor = ThreadPoolExecutor(jobs or usable_cpus(), "taskmap-nvrtc")
        self._wanted: dict[str, CudaSource] = {}
        self._keys: dict[str, StoredKernel] = {}
        self._made: dict[str, CudaBinary] = {}
        self._running: dict[Future[Assembled], CudaSource] = {}
        self._started = 0.0

    def __len__(self) -> int:
        """The number of kernels wanted so far."""
        return len(self._wanted)

    def add(self, source: CudaSource) -> None:
        """Requests a kernel. Raises ValueError if its symbol stands for another source already."""
        if not self._wanted.setdefault(source.symbol, source).is_same_kernel(source):
            raise ValueError(f"two different kernels are called {source.symbol}")
        if source.symbol in self._keys:
            return
        started = perf_counter()
        self._keys[source.symbol] = key = _stored(source, self._toolchain)
        found = _find(source, key, self._store)
        self._counters.add(kernels_found=found is not None, lookup_seconds=perf_counter() - started)
        if found is not None:
            self._adopt_found(found)
            return
        self._started = self._started or perf_counter()
        self._running[self._executor.submit(self._toolchain.assemble, whole_text(source), source.symbol)] = source

    def refused(self, progress: Progress | None = None) -> dict[str, KernelResourceError]:
        """By symbol, the reasons why added kernels exceed the resources that their sources allow. These kernels are
        forgotten: others may be added in their place, or the same with more allowed. Waits for all; raises
        CompilerFailedError as compile_cuda."""
        running, self._running = self._running, {}
        found: dict[str, KernelResourceError] = {}
        for future in each_done(running):
            source = running[future]
            try:
                self._adopt(source, future)
            except KernelResourceError as error:
                found[source.symbol] = error
                del self._wanted[source.symbol], self._keys[source.symbol]
            if progress is not None:
                progress(len(self._made), len(self._wanted))
        return found

    def finish(self, progress: Progress | None = None) -> dict[str, CudaBinary]:
        """The binaries of all kernels that were added. Raises as compile_cuda."""
        try:
            for future in each_done(self._running):
                self._adopt(self._running[future], future)
                if progress is not None:
                    progress(len(self._made), len(self._wanted))
        finally:
            if self._started:
                self._counters.add(compile_seconds=perf_counter() - self._started)
        return {symbol: self._made[symbol] for symbol in self._wanted}

    def close(self) -> None:
        """Cancels compilations that have not started, and waits for the others: they cannot be ended from outside."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _adopt_found(self, binary: CudaBinary) -> None:
        """Checks resources again: a stored kernel may spill because another source, of the same text, allowed it."""
        try:
            check_resources(binary, self._toolchain.architecture)
        except KernelResourceError as error:
            refused: Future[Assembled] = Future()
            refused.set_exception(error)
            self._running[refused] = binary.source
            return
        self._made[binary.source.symbol] = binary

    def _adopt(self, source: CudaSource, future: Future[Assembled]) -> None:
        binary = _binary(source, future, self._toolchain, self._store)
        key = self._keys[source.symbol]
        path = self._store.add_object(binary.image)
        self._store.add_kernels([replace(key, facts={_RESOURCES: binary.resources.to_json()})], path)
        self._made[source.symbol] = binary
        self._counters.add(kernels_compiled=1, units_compiled=1)


def whole_text(source: CudaSource) -> str:
    """The compiler's input. Line numbers restart in the kernel, whose file is named after its symbol."""
    return f'{source.prelude()}\n#line 1 "{source.symbol}"\n{source.text}'


def _stored(source: CudaSource, toolchain: CudaToolchain) -> StoredKernel:
    parts = key_parts(
        KernelSource(source.symbol, source.code, source.prelude()),
        compiler=toolchain.identity,
        flags=toolchain.flags,
        isa=toolchain.architecture,
    )
    return StoredKernel(kernel_key(parts), source.symbol, parts)


def _find(source: CudaSource, kernel: StoredKernel, store: KernelStore) -> CudaBinary | None:
    path = store.lookup(kernel.key, kernel.symbol)
    if path is None:
        return None
    try:
        resources = Resources.from_json(store.facts(kernel.key, kernel.symbol)[_RESOURCES])
        return CudaBinary(source, Path(path).read_bytes(), resources)
    except (OSError, KeyError, ValueError, TypeError):
        return None  # it is compiled again


def _binary(source: CudaSource, future: Future[Assembled], toolchain: CudaToolchain, store: KernelStore) -> CudaBinary:
    try:
        assembled = future.result()
    except RefusedSourceError as error:
        raise CompilerFailedError(
            "the CUDA compiler refused a kernel",
            where=f"{source.symbol}, by {toolchain.identity} for {toolchain.architecture}",
            why=first_lines(str(error), "error"),
            hint=f"This is a defect of taskmap. The source is kept in {store.keep_failed(whole_text(source))}.",
        ) from error
    binary = CudaBinary(source, assembled.image, read_resources(assembled.log))
    check_resources(binary, toolchain.architecture)
    return binary


def check_resources(binary: CudaBinary, architecture: str) -> None:
    """Raises KernelResourceError for uses that the source does not allow: spills, serialised tensor instructions."""
    source, resources = binary.source, binary.resources
    where = f"{source.symbol}, for {architecture}"
    if resources.spills and "spills" not in source.allow:
        raise KernelResourceError(
            "a kernel runs out of registers",
            where=where,
            why=f"{resources.spill_stores} bytes are stored to memory and {resources.spill_loads} bytes loaded back "
            f"by each thread, which has {resources.registers} registers.",
            hint="Use smaller tiles or more threads, or let the configuration allow spills.",
        )
    if resources.serialized and "serialized" not in source.allow:
        raise KernelResourceError(
            "the tensor instructions of a kernel are serialised",
            where=where,
            why="\n".join(w for w in resources.warnings if "serialized" in w) or "wgmma is serialised.",
            hint="Accumulators must not be touched between wgmma and its wait, and must be indexed by constants.",
        )
