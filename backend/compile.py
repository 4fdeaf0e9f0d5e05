"""From kernel sources to addresses: found in the store, or compiled in parallel into few translation units."""

from __future__ import annotations

import os
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from taskmap.backend.children import Children, OutOfTimeError
from taskmap.backend.counters import Counters
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.kernel_source import KernelSource, kernel_key, key_parts
from taskmap.backend.library import Library, load_library
from taskmap.backend.scratch import Scratch
from taskmap.backend.store import KernelStore, StoredKernel
from taskmap.ir.errors import CompilerFailedError

Progress = Callable[[int, int], None]
"""Called with the number of kernels that are ready and the number wanted, in the thread that asked for them."""

_UNITS_PER_JOB = 2  # units never take equally long: a second round evens that out
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True, eq=False)
class LoadedKernels(Mapping[str, int]):
    """Addresses of kernels by symbol. `libraries` holds the code that they lie in."""

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
    """Kernels that one run of the compiler makes, with preludes that go together."""

    kernels: tuple[KernelSource, ...]

    @property
    def text(self) -> str:
        """C source. Line numbers start anew in each kernel, so that a diagnostic names the kernel by its symbol."""
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
    """Addresses of all `sources`, compiling with `jobs` compilers at once (default: one per CPU) what is not stored.

    What was compiled is stored as soon as it is there, so an interrupted call is continued by the next one. An
    interrupt ends all compilers. Raises CompilerFailedError, and ValueError when a symbol stands for two sources.
    """
    wanted = _by_symbol(sources)
    kernels = {symbol: _stored_kernel(source, toolchain) for symbol, source in wanted.items()}
    session = _Session(kernels, toolchain, store)

    started = time.perf_counter()
    missing = [wanted[symbol] for symbol in session.load_stored()]
    counters.add(kernels_found=len(wanted) - len(missing), lookup_seconds=time.perf_counter() - started)
    if not missing:
        return session.loaded()

    jobs = jobs or _usable_cpus()
    units = partition(missing, _UNITS_PER_JOB * jobs)
    started = time.perf_counter()
    try:
        session.build(units, jobs, counters, progress)
    finally:
        counters.add(compile_seconds=time.perf_counter() - started)
    return session.loaded()


def partition(kernels: Sequence[KernelSource], count: int) -> list[TranslationUnit]:
    """About `count` units of equal length, longest first; more where there are more preludes that cannot be united."""
    groups: defaultdict[str | None, list[KernelSource]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.prelude if isinstance(kernel.prelude, str) else None].append(kernel)
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


def _by_symbol(sources: Sequence[KernelSource]) -> dict[str, KernelSource]:
    wanted: dict[str, KernelSource] = {}
    for source in sources:
        if wanted.setdefault(source.symbol, source) != source:
            raise ValueError(f"two different kernels are called {source.symbol}")
    return wanted


def _stored_kernel(source: KernelSource, toolchain: Toolchain) -> StoredKernel:
    parts = key_parts(source, compiler=toolchain.identity, flags=toolchain.flags, isa=toolchain.isa)
    return StoredKernel(kernel_key(parts), source.symbol, parts)


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Session:
    """One call of compile_kernels: what is loaded so far."""

    def __init__(self, kernels: Mapping[str, StoredKernel], toolchain: Toolchain, store: KernelStore) -> None:
        self._kernels = kernels
        self._toolchain = toolchain
        self._store = store
        self._addresses: dict[str, int] = {}
        self._libraries: dict[Path, Library] = {}

    def loaded(self) -> LoadedKernels:
        ordered = {symbol: self._addresses[symbol] for symbol in self._kernels}
        return LoadedKernels(ordered, tuple(self._libraries.values()))

    def load_stored(self) -> list[str]:
        """Load what the store has; the symbols that it does not have."""
        missing: list[str] = []
        for symbol, kernel in self._kernels.items():
            path = self._store.lookup(kernel.key, symbol)
            if path is None:
                missing.append(symbol)
                continue
            try:
                self._load(path, [symbol])
            except (OSError, AttributeError) as error:
                self._store.discard(path, str(error))
                missing.append(symbol)
        return missing

    def build(self, units: Sequence[TranslationUnit], jobs: int, counters: Counters, progress: Progress | None) -> None:
        """Compile, store and load `units`; on any failure or interrupt end all compilers."""
        children = Children()
        with Scratch() as folder, ThreadPoolExecutor(min(jobs, len(units)), "taskmap-compile") as executor:
            try:
                running: dict[Future[Path], TranslationUnit] = {
                    executor.submit(self._compile, unit, folder / str(number), children): unit
                    for number, unit in enumerate(units)
                }
                for future in as_completed(running):
                    unit = running[future]
                    self._adopt(unit, future.result())
                    counters.add(kernels_compiled=len(unit.kernels), units_compiled=1)
                    if progress is not None:
                        progress(len(self._addresses), len(self._kernels))
            except BaseException:
                children.cancel()
                executor.shutdown(wait=True, cancel_futures=True)
                raise

    def _adopt(self, unit: TranslationUnit, compiled: Path) -> None:
        """Store and load one compiled unit. It can be found in the store only once it has been loaded."""
        symbols = [kernel.symbol for kernel in unit.kernels]
        path = self._store.add_object(compiled.read_bytes())
        try:
            self._load(path, symbols)
        except (OSError, AttributeError) as error:
            # The store's folder may forbid executing what lies in it.
            self._load_or_explain(compiled, symbols, unit)
            self._store.discard(path, str(error))
            return
        self._store.add_kernels([self._kernels[symbol] for symbol in symbols], path)

    def _load_or_explain(self, compiled: Path, symbols: Sequence[str], unit: TranslationUnit) -> None:
        try:
            self._load(compiled, symbols)
        except (OSError, AttributeError) as error:
            runtime = any(name in str(error) for name in ("GOMP_", "omp_"))
            raise CompilerFailedError(
                "compiled kernels cannot be loaded",
                where=f"source kept in {self._store.keep_failed(unit.text)}",
                why=str(error),
                hint="Install the OpenMP runtime libgomp.so.1 (Debian, Ubuntu: apt install libgomp1)."
                if runtime
                else None,
            ) from error

    def _load(self, path: Path, symbols: Sequence[str]) -> None:
        library = self._libraries.get(path) or load_library(path)
        self._addresses.update({symbol: library.address(symbol) for symbol in symbols})
        self._libraries[path] = library

    def _compile(self, unit: TranslationUnit, folder: Path, children: Children) -> Path:
        """Compile and link one unit in a new `folder`; the shared object."""
        folder.mkdir()
        compiled, linked = folder / "unit.o", folder / "unit.so"
        self._run(self._toolchain.compile_command(compiled.name), unit, folder, children)
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
            raise self._failure(command, unit, f"{_ending(status)}\n{_first_lines(complaints)}")

    def _failure(self, command: list[str], unit: TranslationUnit, why: str) -> CompilerFailedError:
        return CompilerFailedError(
            "the C compiler failed",
            where=shlex.join(command),
            why=why,
            hint=f"The source is kept in {self._store.keep_failed(unit.text)}. TASKMAP_CC chooses another compiler.",
        )


def _ending(status: int) -> str:
    return f"it was ended by signal {-status}." if status < 0 else f"exit status {status}:"


def _first_lines(text: str) -> str:
    """The first lines of diagnostics, starting at the first error where there is one."""
    lines = text.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if "error:" in line), 0)
    shown = lines[first : first + _SHOWN_LINES]
    more = len(lines) - first - len(shown)
    return "\n".join([*shown, f"({more} more lines)"] if more > 0 else shown)
