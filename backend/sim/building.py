"""Kernels for the host: from the store, or compiled, several to a translation unit, and loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from time import perf_counter

from taskmap.backend.compile_pool import CompilePool
from taskmap.backend.counters import Counters
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.toolchain import Compiler, compile_unit, find_compiler, stored_kernel
from taskmap.backend.sim.unit import ENGINE_SYMBOL, engine_unit, entry_symbol, kernel_unit
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.ir.errors import CompilerFailedError, InputError


@dataclass(frozen=True, slots=True)
class SimKernel:
    """A kernel built for the host."""

    source: CudaSource
    path: Path
    handle: ctypes.CDLL
    checked: bool

    @property
    def entry(self) -> int:
        """The address of the function that runs one thread."""
        address = ctypes.cast(self.handle[entry_symbol(self.source.symbol)], ctypes.c_void_p).value
        if address is None:
            raise InputError(f"the simulator's kernel has no {entry_symbol(self.source.symbol)}")
        return address


_TOGETHER = 4
"""Kernels per translation unit of a pool: fewer repeat the cost of reading and linking, more leave processors idle."""


class SimCompiler(CompilePool[CudaSource, Sequence[CudaSource], "list[SimKernel]", SimKernel]):
    """Builds kernels without checks. A unit looks its kernels up itself, in its thread, and counts them."""

    def __init__(self, store: KernelStore, counters: Counters) -> None:
        super().__init__(Counters(), None, "taskmap-sim")
        self._store, self._built = store, counters

    def find(self, source: CudaSource) -> None:
        """None: see the class."""

    def units(self, pending: list[CudaSource], last: bool) -> Sequence[Sequence[CudaSource]]:
        """A few kernels together."""
        if not last and len(pending) < _TOGETHER:
            return ()
        unit = tuple(pending)
        pending.clear()
        return (unit,)

    def compile(self, unit: Sequence[CudaSource]) -> list[SimKernel]:
        """The kernels of a unit, loaded."""
        return build_kernels(unit, self._store, checked=False, counters=self._built)

    def adopt(self, unit: Sequence[CudaSource], compiled: list[SimKernel]) -> Mapping[str, SimKernel]:
        """The kernels by symbol."""
        return {kernel.source.symbol: kernel for kernel in compiled}


_loaded: dict[tuple[CudaSource, KernelStore, bool], SimKernel] = {}


def build_kernel(
    source: CudaSource, store: KernelStore | None = None, *, checked: bool = True, counters: Counters | None = None
) -> SimKernel:
    """The kernel as a shared object of the host, loaded. Raises CompilerFailedError."""
    return build_kernels([source], store, checked=checked, counters=counters)[0]


def build_kernels(
    sources: Sequence[CudaSource],
    store: KernelStore | None = None,
    *,
    checked: bool = True,
    counters: Counters | None = None,
) -> list[SimKernel]:
    """Kernels, of different symbols, loaded. Those that are not in the store are compiled as one translation unit:
    reading the device code and linking are half the cost of a small kernel. Raises CompilerFailedError."""
    store, counters = store or _default_store(), counters or Counters()
    engine(store)
    started = perf_counter()
    keys = {s: _stored(s, checked) for s in sources if (s, store, checked) not in _loaded}
    missing: list[CudaSource] = []
    for source, key in keys.items():
        path = store.lookup(key.key, key.symbol)
        if path is None:
            missing.append(source)
        else:
            _load(source, store, checked, path)
    looked = perf_counter()
    if missing:
        _compile(missing, store, checked, keys)
        counters.add(kernels_compiled=len(missing), units_compiled=1, compile_seconds=perf_counter() - looked)
    counters.add(kernels_found=len(sources) - len(missing), lookup_seconds=looked - started)
    return [_loaded[s, store, checked] for s in sources]


def engine(store: KernelStore | None = None) -> ctypes.CDLL:
    """The engine, built if necessary. Its symbols are visible to the whole process: kernels are bound to them."""
    text = engine_unit()
    with _engine_lock:  # a process has only one engine, from whichever store
        if text not in _engines:
            _engines[text] = ctypes.CDLL(str(engine_file(store)), mode=ctypes.RTLD_GLOBAL)
        return _engines[text]


def engine_file(store: KernelStore | None = None) -> Path:
    """The engine's shared object in the store, built if necessary. Raises CompilerFailedError."""
    store, text = store or _default_store(), engine_unit()
    key = stored_kernel(ENGINE_SYMBOL, text, _compiler(), engine=True)
    path = store.lookup(key.key, key.symbol)
    return Path(path) if path is not None else compile_unit([key], text, _compiler(), store, engine=True)


def use_engine(load: Callable[[], ctypes.CDLL]) -> None:
    """Makes the process use the engine of this very version that ``load`` loads, its symbols visible, unless it has
    one; builds nothing then."""
    with _engine_lock:
        if engine_unit() not in _engines:
            _engines[engine_unit()] = load()


_engines: dict[str, ctypes.CDLL] = {}
_engine_lock = Lock()


@lru_cache(maxsize=1)
def _default_store() -> KernelStore:
    return KernelStore()


@lru_cache(maxsize=1)
def _compiler() -> Compiler:
    return find_compiler()


def _stored(source: CudaSource, checked: bool) -> StoredKernel:
    unit = kernel_unit([source], checked=checked)
    return stored_kernel(entry_symbol(source.symbol), unit, _compiler(), checked=checked)


def _compile(
    sources: Sequence[CudaSource], store: KernelStore, checked: bool, keys: dict[CudaSource, StoredKernel]
) -> None:
    try:
        unit = kernel_unit(sources, checked=checked)
        path = compile_unit([keys[s] for s in sources], unit, _compiler(), store, checked=checked)
    except CompilerFailedError:
        if len(sources) == 1:
            raise
        for source in sources:  # alone, so that the message names the rejected one
            _compile([source], store, checked, keys)
        return
    for source in sources:
        _load(source, store, checked, path)


def _load(source: CudaSource, store: KernelStore, checked: bool, path: Path) -> None:
    _loaded[source, store, checked] = SimKernel(source, path, ctypes.CDLL(str(path)), checked)
