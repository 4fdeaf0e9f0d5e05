"""From CUDA sources to CUBINs: found in the store, or compiled side by side, one kernel to a translation unit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.cuda_source import CudaSource
from taskmap.backend.cuda.nvrtc import Assembled, RefusedSourceError
from taskmap.backend.cuda.resources import Resources, read_resources
from taskmap.backend.cuda.toolchain import CudaToolchain
from taskmap.backend.kernel_source import KernelSource, kernel_key, key_parts
from taskmap.backend.store import KernelStore, StoredKernel
from taskmap.ir.errors import CompilerFailedError, KernelResourceError

Progress = Callable[[int, int], None]
"""Called with the number of kernels that are ready and the number wanted, in the thread that asked for them."""

SUFFIX = ".cubin"
"""The ending of the store's files that hold machine code for GPUs."""

_RESOURCES = "resources"
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class CudaBinary:
    """The machine code of a kernel, and what it takes of the GPU."""

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
    """The binaries of `sources` by symbol, compiling with `jobs` threads (default: one per CPU) what is not stored.

    ``store`` has the suffix SUFFIX. Raises CompilerFailedError when a source is refused, and its subclass
    KernelResourceError when a kernel spills registers, or its tensor instructions are serialised, and its source does
    not allow it.
    """
    wanted = {source.symbol: source for source in sources}
    keys = {symbol: _stored(source, toolchain) for symbol, source in wanted.items()}
    started = perf_counter()
    made: dict[str, CudaBinary] = {}
    for symbol, source in wanted.items():
        found = _find(source, keys[symbol], store)
        if found is not None:
            made[symbol] = found
    counters.add(kernels_found=len(made), lookup_seconds=perf_counter() - started)
    # The longest first: then no thread is left with it alone at the end.
    missing = sorted((s for s in wanted.values() if s.symbol not in made), key=lambda s: -len(s.text))
    if missing:
        started = perf_counter()
        try:
            _compile_all(missing, keys, toolchain, store, made, len(wanted), counters, progress, jobs)
        finally:
            counters.add(compile_seconds=perf_counter() - started)
    return {symbol: made[symbol] for symbol in wanted}


def whole_text(source: CudaSource) -> str:
    """The text that the compiler sees. Line numbers start anew in the kernel, whose file is called by its symbol."""
    return f'{source.prelude()}\n#line 1 "{source.symbol}"\n{source.text}'


def _stored(source: CudaSource, toolchain: CudaToolchain) -> StoredKernel:
    parts = key_parts(
        KernelSource(source.symbol, source.text, source.prelude()),
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


def _compile_all(
    missing: Sequence[CudaSource],
    keys: dict[str, StoredKernel],
    toolchain: CudaToolchain,
    store: KernelStore,
    made: dict[str, CudaBinary],
    wanted: int,
    counters: Counters,
    progress: Progress | None,
    jobs: int | None,
) -> None:
    workers = min(jobs or _usable_cpus(), len(missing))
    with ThreadPoolExecutor(workers, "taskmap-nvrtc") as executor:
        running: dict[Future[Assembled], CudaSource] = {
            executor.submit(toolchain.assemble, whole_text(source), source.symbol): source for source in missing
        }
        try:
            for future in as_completed(running):
                source = running[future]
                binary = _binary(source, future, toolchain, store)
                path = store.add_object(binary.image)
                kept = keys[source.symbol]
                facts = {_RESOURCES: binary.resources.to_json()}
                store.add_kernels([StoredKernel(kept.key, kept.symbol, kept.parts, facts)], path)
                made[source.symbol] = binary
                counters.add(kernels_compiled=1, units_compiled=1)
                if progress is not None:
                    progress(len(made), wanted)
        except BaseException:
            executor.shutdown(wait=True, cancel_futures=True)
            raise


def _binary(source: CudaSource, future: Future[Assembled], toolchain: CudaToolchain, store: KernelStore) -> CudaBinary:
    try:
        assembled = future.result()
    except RefusedSourceError as error:
        raise CompilerFailedError(
            "the CUDA compiler refused a kernel",
            where=f"{source.symbol}, by {toolchain.identity} for {toolchain.architecture}",
            why=_first_lines(str(error)),
            hint=f"This is a defect of taskmap. The source is kept in {store.keep_failed(whole_text(source))}.",
        ) from error
    binary = CudaBinary(source, assembled.image, read_resources(assembled.log))
    check_resources(binary, toolchain.architecture)
    return binary


def check_resources(binary: CudaBinary, architecture: str) -> None:
    """Raises KernelResourceError for what the source does not allow: spills, serialised tensor instructions."""
    source, resources = binary.source, binary.resources
    where = f"{source.symbol}, for {architecture}"
    if resources.spills and "spills" not in source.allow:
        raise KernelResourceError(
            "a kernel has not enough registers",
            where=where,
            why=f"{resources.spill_stores} bytes are stored to memory and {resources.spill_loads} bytes loaded back "
            f"by each thread, which has {resources.registers} registers.",
            hint="Use smaller tiles or more threads, or let the configuration allow spills.",
        )
    if resources.serialized and "serialized" not in source.allow:
        raise KernelResourceError(
            "the tensor instructions of a kernel run one after the other",
            where=where,
            why="\n".join(w for w in resources.warnings if "serialized" in w) or "wgmma is serialised.",
            hint="Accumulators must not be touched between wgmma and its wait, and must be indexed by constants.",
        )


def _first_lines(text: str) -> str:
    lines = text.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if "error" in line), 0)
    shown = lines[first : first + _SHOWN_LINES]
    more = len(lines) - first - len(shown)
    return "\n".join([*shown, f"({more} more lines)"] if more > 0 else shown)


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
