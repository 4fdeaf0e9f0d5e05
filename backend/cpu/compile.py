"""From kernel sources to addresses: kernels come from the store, or are compiled in parallel in few translation
units."""

from __future__ import annotations

import logging
import shlex
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from taskmap.backend.children import Children, OutOfTimeError
from taskmap.backend.compilers import Progress, first_lines, usable_cpus
from taskmap.backend.counters import Counters
from taskmap.backend.cpu.team import have_team, load_team, team_source
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.library import Library, load_library
from taskmap.backend.store.key import KernelSource, kernel_key, key_parts
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.backend.store.scratch import Scratch
from taskmap.ir.errors import CompilerFailedError
from taskmap.ir.util.waiting import each_done

_log = logging.getLogger(__name__)
_UNITS_PER_JOB = 2  # units never take equally long: a second round balances them
_ENOUGH = 24_000  # characters of C that are worth a compiler of their own
_TEAM_LOCK = Lock()


@dataclass(frozen=True, slots=True, eq=False)
class LoadedKernels(Mapping[str, int]):
    """Addresses of kernels by symbol. `libraries` keeps their code loaded."""

    addresses: Mapping[str, int]
    libraries: tuple[Library, ...]

    def __getitem__(self, symbol: str) -> int:
        return self.addresses[symbol]

    def __iter__(self) -> Iterator[str]:
        return iter(self.addresses)

    def __len__(self) -> int:
        return len(self.addresses)


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """Kernels that one run of the compiler builds; their preludes are compatible."""

    kernels: tuple[KernelSource, ...]

    @property
    def computes_with_integers(self) -> bool:
        """True if any of its kernels computes with integers."""
        return any(kernel.computes_with_integers for kernel in self.kernels)

    @property
    def is_spelled_out(self) -> bool:
        """True if all of its kernels are spelled out."""
        return all(kernel.is_spelled_out for kernel in self.kernels)

    @property
    def has_float_sizes(self) -> bool:
        """True if any of its kernels computes sizes in floating point."""
        return any(kernel.has_float_sizes for kernel in self.kernels)

    @property
    def text(self) -> str:
        """C source. Line numbers restart in each kernel, so that a diagnostic names the kernel by its symbol."""
        kernels = (f'#line 1 "{kernel.symbol}"\n{kernel.text}\n' for kernel in self.kernels)
        return f'#line 1 "prelude"\n{self._prelude()}\n' + "".join(kernels)

    def _prelude(self) -> str:
        whole = [kernel.prelude for kernel in self.kernels if isinstance(kernel.prelude, str)]
        parts = [part for kernel in self.kernels if isinstance(kernel.prelude, tuple) for part in kernel.prelude]
        return "\n".join(dict.fromkeys(whole + parts))


def compile_kernels(
    sources: Sequence[KernelSource],
    toolchain: Toolchain,
    store: KernelStore,
    counters: Counters,
    progress: Progress | None = None,
    *,
    jobs: int | None = None,
) -> LoadedKernels:
    """Addresses of all `sources`. Kernels that are not stored are compiled by `jobs` compilers at once (default: one
    per CPU).

    A compiled kernel is stored as soon as it is ready, so the next call continues an interrupted one. An interrupt ends
    all compilers. Raises CompilerFailedError, and ValueError if a symbol stands for two sources.
    """
    with closing(KernelCompiler(toolchain, store, counters, jobs=jobs)) as compiler:
        return compiler.finish(sources, progress)


class KernelCompiler:
    """Compiles kernels while others are still being generated: `add` each, then `finish` for the addresses of all.

        with closing(KernelCompiler(toolchain, store, counters)) as compiler:
            compiler.add(source)
            kernels = compiler.finish(more_sources)

    `add` starts a compiler as soon as there is enough for one. `close` ends all that are still running.
    """

    def __init__(
        self, toolchain: Toolchain, store: KernelStore, counters: Counters, *, jobs: int | None = None
    ) -> None:
        self._session = _Session(toolchain, store)
        self._counters = counters
        self._jobs = jobs or usable_cpus()
        self._wanted: dict[str, KernelSource] = {}
        self._pending: list[KernelSource] = []
        self._started = 0.0

    def __len__(self) -> int:
        """The number of kernels wanted so far."""
        return len(self._wanted)

    def add(self, source: KernelSource) -> None:
        """Requests a kernel. Raises ValueError if its symbol stands for another source already."""
        known = self._wanted.get(source.symbol)
        if known is not None:
            if known != source:
                raise ValueError(f"two different kernels are called {source.symbol}")
            return
        self._wanted[source.symbol] = source
        started = time.perf_counter()
        found = self._session.find(source)
        self._counters.add(kernels_found=found, lookup_seconds=time.perf_counter() - started)
        _log.debug("%s: %s", source.symbol, "in the store" if found else "to be compiled")
        if found:
            return
        self._pending.append(source)
        if _length(self._pending) >= _ENOUGH:
            self._start(1)

    def finish(self, sources: Sequence[KernelSource] = (), progress: Progress | None = None) -> LoadedKernels:
        """The addresses of `sources` and of all kernels that were added before. Raises CompilerFailedError."""
        for source in sources:
            self.add(source)
        if self._pending:
            self._start(_UNITS_PER_JOB * self._jobs)
        if not self._started:
            return self._session.loaded(self._wanted)
        try:
            self._session.collect(len(self._wanted), self._counters, progress)
        finally:
            self._counters.add(compile_seconds=time.perf_counter() - self._started)
        return self._session.loaded(self._wanted)

    def close(self) -> None:
        """Ends the compilers that are still running."""
        self._session.close()

    def _start(self, count: int) -> None:
        self._started = self._started or time.perf_counter()
        self._session.start(partition(self._pending, count, self._session.separates), self._jobs)
        self._pending = []


def ensure_team(toolchain: Toolchain, store: KernelStore) -> None:
    """Loads the library that kernels are bound to, unless the process has it. Raises CompilerFailedError."""
    with _TEAM_LOCK:
        if not have_team():
            load_team(team_file(toolchain, store).read_bytes())


def team_file(toolchain: Toolchain, store: KernelStore) -> Path:
    """The library that kernels are bound to, in ``store``. Raises CompilerFailedError."""
    plain = replace(toolchain, isa="generic", fast_math=False, contract=False)
    session = _Session(plain, store)
    try:
        return session.file(team_source())
    finally:
        session.close()


def partition(kernels: Sequence[KernelSource], count: int, separate: bool = False) -> list[TranslationUnit]:
    """About `count` units of equal length, longest first; more if there are more incompatible preludes.

    Kernels that are spelled out, or have sizes in floating point, get units of their own; with ``separate``, so do
    those that compute with integers.
    """
    groups: defaultdict[tuple[str | None, bool, bool, bool], list[KernelSource]] = defaultdict(list)
    for kernel in kernels:
        whole = kernel.prelude if isinstance(kernel.prelude, str) else None
        integers = separate and kernel.computes_with_integers
        groups[whole, integers, kernel.is_spelled_out, kernel.has_float_sizes].append(kernel)
    total = sum(len(kernel.text) for kernel in kernels)
    units: list[TranslationUnit] = []
    for group in groups.values():
        share = round(count * sum(len(kernel.text) for kernel in group) / max(total, 1))
        units += _balance(group, min(len(group), max(1, share)))
    return sorted(units, key=lambda unit: -_length(unit.kernels))


def _balance(kernels: Sequence[KernelSource], count: int) -> list[TranslationUnit]:
    """Longest kernel first, each into the shortest unit so far (Graham's rule)."""
    bins: list[list[KernelSource]] = [[] for _ in range(count)]
    for kernel in sorted(kernels, key=lambda kernel: (-len(kernel.text), kernel.symbol)):
        min(bins, key=lambda unit: (_length(unit), len(unit))).append(kernel)
    return [TranslationUnit(tuple(unit)) for unit in bins]


def _length(kernels: Sequence[KernelSource]) -> int:
    return sum(len(kernel.text) for kernel in kernels)


def stored_kernel(source: KernelSource, toolchain: Toolchain) -> StoredKernel:
    """The kernel's key and parts in the store, for a compilation by ``toolchain``."""
    flags = toolchain.flags_for(source.computes_with_integers, source.is_spelled_out, source.has_float_sizes)
    parts = key_parts(source, compiler=toolchain.identity, flags=flags, isa=toolchain.isa)
    return StoredKernel(kernel_key(parts), source.symbol, parts)


class _Session:
    """The kernels loaded so far, and the running compilers."""

    def __init__(self, toolchain: Toolchain, store: KernelStore) -> None:
        self._toolchain = toolchain
        self._store = store
        self._kernels: dict[str, StoredKernel] = {}
        self._addresses: dict[str, int] = {}
        self._libraries: dict[Path, Library] = {}
        self._running: dict[Future[Path], TranslationUnit] = {}
        self._children = Children()
        self._executor: ThreadPoolExecutor | None = None
        self._scratch = ExitStack()
        self._folder = Path()

    @property
    def separates(self) -> bool:
        """True if kernels that compute with integers need flags of their own."""
        return self._toolchain.safer.integers != self._toolchain.safer.floats

    def loaded(self, symbols: Iterable[str]) -> LoadedKernels:
        return LoadedKernels({s: self._addresses[s] for s in symbols}, tuple(self._libraries.values()))

    def find(self, source: KernelSource) -> bool:
        """Loads the kernel if the store has it."""
        kernel = self._kernels[source.symbol] = stored_kernel(source, self._toolchain)
        path = self._store.lookup(kernel.key, kernel.symbol)
        if path is None:
            return False
        try:
            self._load(path, [kernel.symbol])
        except (OSError, AttributeError) as error:
            self._store.discard(path, str(error))
            return False
        return True

    def file(self, source: KernelSource) -> Path:
        """The shared object of one kernel, without loading it."""
        kernel = stored_kernel(source, self._toolchain)
        path = self._store.lookup(kernel.key, kernel.symbol)
        if path is None:
            folder = self._scratch.enter_context(Scratch())
            unit = TranslationUnit((source,))
            path = self._store.add_object(self._compile(unit, folder / "0", self._children).read_bytes())
            self._store.add_kernels([kernel], path)
        return path

    def start(self, units: Sequence[TranslationUnit], jobs: int) -> None:
        """Compiles `units`, at most `jobs` at once, in the background."""
        if self._executor is None:
            self._folder = self._scratch.enter_context(Scratch())
            self._executor = ThreadPoolExecutor(jobs, "taskmap-compile")
        for unit in units:
            folder = self._folder / str(len(self._running))
            self._running[self._executor.submit(self._compile, unit, folder, self._children)] = unit

    def collect(self, wanted: int, counters: Counters, progress: Progress | None) -> None:
        """Stores and loads started units as they become ready."""
        for future in each_done(self._running):
            unit = self._running[future]
            self._adopt(unit, future.result())
            counters.add(kernels_compiled=len(unit.kernels), units_compiled=1)
            if progress is not None:
                progress(len(self._addresses), wanted)

    def close(self) -> None:
        """Ends the compilers that are still running, and removes their files."""
        self._children.cancel()  # also those that an interrupt kept out of the list of running ones
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._scratch.close()

    def _adopt(self, unit: TranslationUnit, compiled: Path) -> None:
        """Stores and loads one compiled unit. The store offers it only once it has been loaded."""
        symbols = [kernel.symbol for kernel in unit.kernels]
        path = self._store.add_object(compiled.read_bytes())
        try:
            self._load(path, symbols)
        except (OSError, AttributeError) as error:
            # The store's folder may forbid executing its files.
            self._load_or_explain(compiled, symbols, unit)
            self._store.discard(path, str(error))
            return
        self._store.add_kernels([self._kernels[symbol] for symbol in symbols], path)

    def _load_or_explain(self, compiled: Path, symbols: Sequence[str], unit: TranslationUnit) -> None:
        try:
            self._load(compiled, symbols)
        except (OSError, AttributeError) as error:
            raise CompilerFailedError(
                "compiled kernels cannot be loaded",
                where=f"source kept in {self._store.keep_failed(unit.text)}",
                why=str(error),
            ) from error

    def _load(self, path: Path, symbols: Sequence[str]) -> None:
        ensure_team(self._toolchain, self._store)
        library = self._libraries.get(path) or load_library(path)
        self._addresses.update({symbol: library.address(symbol) for symbol in symbols})
        self._libraries[path] = library

    def _compile(self, unit: TranslationUnit, folder: Path, children: Children) -> Path:
        """Compiles and links one unit in a new `folder`; returns the shared object."""
        folder.mkdir()
        compiled, linked = folder / "unit.o", folder / "unit.so"
        command = self._toolchain.compile_command(
            compiled.name,
            integers=unit.computes_with_integers,
            spelled_out=unit.is_spelled_out,
            float_sizes=unit.has_float_sizes,
        )
        self._run(command, unit, folder, children)
        command = self._toolchain.link_command(compiled.name, linked.name)
        self._run(command, unit, folder, children)
        if not linked.is_file():
            raise self._failure(command, unit, "it reported success, but wrote no shared object.")
        return linked

    def _run(self, command: list[str], unit: TranslationUnit, folder: Path, children: Children) -> None:
        try:
            status, complaints = children.run(
                command,
                stdin=unit.text.encode(),
                environment=self._toolchain.environment(str(folder)),
                folder=str(folder),
                timeout=self._toolchain.timeout,
            )
        except OutOfTimeError:
            raise self._failure(command, unit, f"it did not end within {self._toolchain.timeout:g} s.") from None
        except OSError as error:
            raise self._failure(command, unit, f"it could not be run: {error}") from error
        if status != 0:
            raise self._failure(command, unit, f"{_ending(status)}\n{first_lines(complaints)}")

    def _failure(self, command: list[str], unit: TranslationUnit, why: str) -> CompilerFailedError:
        return CompilerFailedError(
            "the C compiler failed",
            where=shlex.join(command),
            why=why,
            hint=f"The source is kept in {self._store.keep_failed(unit.text)}. TASKMAP_CC chooses another compiler.",
        )


def _ending(status: int) -> str:
    return f"it was ended by signal {-status}." if status < 0 else f"exit status {status}:"
