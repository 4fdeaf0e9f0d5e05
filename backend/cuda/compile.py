"""From CUDA sources to CUBINs: from the store, or compiled in parallel, one kernel to a translation unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from taskmap.backend.compile_pool import CompilePool
from taskmap.backend.compilers import Progress, first_lines
from taskmap.backend.counters import Counters
from taskmap.backend.cuda.nvrtc import Assembled, RefusedSourceError
from taskmap.backend.cuda.resources import Resources, read_resources
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.toolchain import CudaToolchain
from taskmap.backend.store.key import KernelSource, kernel_key, key_parts
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.ir.errors import CompilerFailedError, KernelResourceError, TaskmapError

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
) -> Mapping[str, CudaBinary]:
    """The binaries of `sources` by symbol. Kernels that are not stored are compiled with `jobs` threads (default: one
    per CPU).

    ``store`` has the suffix SUFFIX. Raises CompilerFailedError if a source is rejected, and its subclass
    KernelResourceError if a kernel spills registers, or its tensor instructions are serialised, and its source does not
    allow it.
    """
    with closing(CudaCompiler(toolchain, store, counters, jobs=jobs)) as compiler:
        return compiler.finish(sources, progress)


class CudaCompiler(CompilePool[CudaSource, CudaSource, Assembled, CudaBinary]):
    """Compiles kernels for a GPU, one to a unit; see compile_cuda."""

    def __init__(
        self, toolchain: CudaToolchain, store: KernelStore, counters: Counters, *, jobs: int | None = None
    ) -> None:
        super().__init__(counters, jobs, "taskmap-nvrtc")
        self._toolchain, self._store = toolchain, store
        self._keys: dict[str, StoredKernel] = {}
        self._excessive: dict[str, TaskmapError] = {}

    def find(self, source: CudaSource) -> CudaBinary | None:
        """The stored kernel. Its resources are checked again: it may spill because another source, of the same text,
        allowed it."""
        self._keys[source.symbol] = key = _stored(source, self._toolchain)
        found = _find(source, key, self._store)
        if found is not None:
            self._check(found)
        return found

    def units(self, pending: list[CudaSource], last: bool) -> Sequence[CudaSource]:
        """Every kernel by itself, at once."""
        taken = tuple(pending)
        pending.clear()
        return taken

    def compile(self, unit: CudaSource) -> Assembled:
        """The machine code. Raises CompilerFailedError."""
        try:
            return self._toolchain.assemble(whole_text(unit), unit.symbol)
        except RefusedSourceError as error:
            raise CompilerFailedError(
                "the CUDA compiler refused a kernel",
                where=f"{unit.symbol}, by {self._toolchain.identity} for {self._toolchain.architecture}",
                why=first_lines(str(error), "error"),
                hint=f"This is a defect of taskmap. The source is kept in {self._store.keep_failed(whole_text(unit))}.",
            ) from error

    def adopt(self, unit: CudaSource, compiled: Assembled) -> Mapping[str, CudaBinary]:
        """Stores the machine code, unless the kernel needs more than its source allows."""
        binary = CudaBinary(unit, compiled.image, read_resources(compiled.log))
        if not self._check(binary):
            return {}
        path = self._store.add_object(binary.image)
        facts = {_RESOURCES: binary.resources.to_json()}
        self._store.add_kernels([replace(self._keys[unit.symbol], facts=facts)], path)
        return {unit.symbol: binary}

    def refused(self, progress: Progress | None = None) -> dict[str, TaskmapError]:
        """As in CompilePool; the same kernels may be added with more allowed. Waits for all; raises CompilerFailedError
        as compile_cuda."""
        self._collect(progress)
        found, self._excessive = self._excessive, {}
        return found

    def _check(self, binary: CudaBinary) -> bool:
        try:
            check_resources(binary, self._toolchain.architecture)
        except KernelResourceError as error:
            self._excessive[binary.source.symbol] = error
            del self._wanted[binary.source.symbol]
            return False
        return True


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
    except (OSError, KeyError, ValueError):
        return None  # it is compiled again


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
