"""From kernel sources to addresses: kernels come from the store, or are compiled in parallel in few translation
units."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock

from taskmap.backend.children import Children, OutOfTimeError
from taskmap.backend.compile_pool import CompilePool
from taskmap.backend.compilers import Progress, first_lines
from taskmap.backend.counters import Counters
from taskmap.backend.cpu.team import have_team, load_team, team_source
from taskmap.backend.cpu.tile_model import FEATURE, have_tile_model, load_tile_model, tile_model_source
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.library import Library, load_library
from taskmap.backend.store.key import KernelKind, KernelSource, kernel_key, key_parts
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.backend.store.scratch import Scratch
from taskmap.ir.errors import CompilerFailedError

_UNITS_PER_JOB = 2  # units never take equally long: a second round balances them
_ENOUGH = 24_000
"""Characters of C that are worth a compiler of their own: with fewer, its start takes longer than its work."""
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
    def kind(self) -> KernelKind:
        """The kind of them all; all need the same features."""
        kinds = [kernel.kind for kernel in self.kernels]
        return KernelKind(
            integers=any(k.integers for k in kinds),
            spelled_out=all(k.spelled_out for k in kinds),
            float_sizes=any(k.float_sizes for k in kinds),
            features=kinds[0].features,
            once=all(k.once for k in kinds),
        )

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


def ensure_team(toolchain: Toolchain, store: KernelStore) -> None:
    """Loads the library that kernels are bound to, unless the process has it. Raises CompilerFailedError."""
    with _TEAM_LOCK:
        if not have_team():
            load_team(team_file(toolchain, store).read_bytes())


def team_file(toolchain: Toolchain, store: KernelStore) -> Path:
    """The library that kernels are bound to, in ``store``. Raises CompilerFailedError."""
    return _library_file(team_source(), toolchain, store)


def ensure_tile_model(toolchain: Toolchain, store: KernelStore) -> None:
    """Loads the library that kernels on simulated tiles are bound to, unless the process has it. Raises
    CompilerFailedError."""
    with _TEAM_LOCK:
        if not have_tile_model():
            load_tile_model(tile_model_file(toolchain, store).read_bytes())


def tile_model_file(toolchain: Toolchain, store: KernelStore) -> Path:
    """The library of simulated tiles, in ``store``. Raises CompilerFailedError."""
    return _library_file(tile_model_source(), toolchain, store)


def _library_file(source: KernelSource, toolchain: Toolchain, store: KernelStore) -> Path:
    plain = replace(toolchain, isa="generic", fast_math=False, contract=False, hosted=True)
    with closing(KernelCompiler(plain, store, Counters())) as compiler:
        return compiler.file(source)


def never(_kind: KernelKind) -> bool:
    """Kernels that compute with integers need no units of their own."""
    return False


def partition(
    kernels: Sequence[KernelSource], number: int, separate: Callable[[KernelKind], bool] = never
) -> list[TranslationUnit]:
    """About `number` units of equal length, longest first; more if there are more incompatible preludes.

    Kernels that are spelled out, run once, have sizes in floating point, or need more CPU features get units of their
    own; so do those that compute with integers, of kinds that ``separate`` is true for.
    """
    total = sum(len(kernel.text) for kernel in kernels)
    units: list[TranslationUnit] = []
    for group in compatible(kernels, separate):
        share = round(number * sum(len(kernel.text) for kernel in group) / max(total, 1))
        units += _balance(group, min(len(group), max(1, share)))
    return sorted(units, key=lambda unit: -_length(unit.kernels))


def compatible(
    kernels: Sequence[KernelSource], separate: Callable[[KernelKind], bool] = never
) -> list[list[KernelSource]]:
    """The kernels in groups, each of which could be one unit; ``separate`` as in ``partition``."""
    groups: defaultdict[tuple[str | None, KernelKind], list[KernelSource]] = defaultdict(list)
    for kernel in kernels:
        whole = kernel.prelude if isinstance(kernel.prelude, str) else None
        kind = kernel.kind if separate(kernel.kind) else replace(kernel.kind, integers=False)
        groups[whole, kind].append(kernel)
    return list(groups.values())


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
    flags = toolchain.flags_for(source.kind)
    parts = key_parts(source, compiler=toolchain.identity, flags=flags, isa=toolchain.isa)
    return StoredKernel(kernel_key(parts), source.symbol, parts)


class KernelCompiler(CompilePool[KernelSource, TranslationUnit, Path, int]):
    """Compiles kernels of the CPU: a compiler starts as soon as there is enough for one."""

    def __init__(
        self, toolchain: Toolchain, store: KernelStore, counters: Counters, *, jobs: int | None = None
    ) -> None:
        super().__init__(counters, jobs, "taskmap-compile")
        self._toolchain, self._store = toolchain, store
        self._kernels: dict[str, StoredKernel] = {}
        self._libraries: dict[Path, Library] = {}
        self._children = Children()
        self._scratch = ExitStack()
        self._folder: Path | None = None
        self._numbers = count()
        self._begun = 0

    def find(self, source: KernelSource) -> int | None:
        """The address of the kernel, if the store has it."""
        kernel = self._kernels[source.symbol] = stored_kernel(source, self._toolchain)
        if FEATURE in source.kind.features:
            ensure_tile_model(self._toolchain, self._store)
        path = self._store.lookup(kernel.key, kernel.symbol)
        if path is None:
            return None
        try:
            return self._load(path, [kernel.symbol])[kernel.symbol]
        except (OSError, AttributeError) as error:
            self._store.discard(path, str(error))
            return None

    def units(self, pending: list[KernelSource], last: bool) -> Sequence[TranslationUnit]:
        """One unit as soon as it is long enough for a compiler of its own; at the end, as many as are worth one.

        Units become longer from round to round: the first ones start early, and later ones would wait for a compiler.
        """
        if self._folder is None:
            self._folder = self._scratch.enter_context(Scratch())
        separates = self._toolchain.separates
        if last:
            worth = max(self.jobs, _length(pending) // _ENOUGH)
            units = partition(pending, min(_UNITS_PER_JOB * self.jobs, worth), separates)
        else:
            enough = _ENOUGH * (1 + self._begun // self.jobs)
            units = [TranslationUnit(tuple(g)) for g in compatible(pending, separates) if _length(g) >= enough]
        self._begun += len(units)
        taken = {kernel.symbol for unit in units for kernel in unit.kernels}
        pending[:] = [kernel for kernel in pending if kernel.symbol not in taken]
        return units

    def compile(self, unit: TranslationUnit) -> Path:
        """Compiles and links one unit in a new folder; returns the shared object. Raises CompilerFailedError."""
        assert self._folder is not None
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        linked = folder / "unit.so"
        commands = self._toolchain.build_commands(linked.name, unit.kind)
        for command in commands:
            self._run(command, unit, folder)
        if not linked.is_file():
            raise self._failure(commands[-1], unit, "it reported success, but wrote no shared object.")
        return linked

    def adopt(self, unit: TranslationUnit, compiled: Path) -> Mapping[str, int]:
        """Stores and loads one compiled unit. The store offers it only once it has been loaded."""
        symbols = [kernel.symbol for kernel in unit.kernels]
        path = self._store.add_object(compiled.read_bytes())
        try:
            found = self._load(path, symbols)
        except (OSError, AttributeError) as error:
            # The store's folder may forbid executing its files.
            found = self._load_or_explain(compiled, symbols, unit)
            self._store.discard(path, str(error))
            return found
        self._store.add_kernels([self._kernels[symbol] for symbol in symbols], path)
        return found

    def finish(self, sources: Sequence[KernelSource] = (), progress: Progress | None = None) -> LoadedKernels:
        """The addresses of `sources` and of all kernels that were added before. Raises CompilerFailedError."""
        return LoadedKernels(super().finish(sources, progress), tuple(self._libraries.values()))

    def file(self, source: KernelSource) -> Path:
        """The shared object of one kernel in the store, without loading it. Raises CompilerFailedError."""
        kernel = stored_kernel(source, self._toolchain)
        path = self._store.lookup(kernel.key, kernel.symbol)
        if path is None:
            (unit,) = self.units([source], last=True)
            path = self._store.add_object(self.compile(unit).read_bytes())
            self._store.add_kernels([kernel], path)
        return path

    def close(self) -> None:
        """Ends the compilers that are still running, and removes their files."""
        self._children.cancel()  # also those that an interrupt kept out of the list of running ones
        super().close()
        self._scratch.close()

    def _load(self, path: Path, symbols: Sequence[str]) -> dict[str, int]:
        ensure_team(self._toolchain, self._store)
        library = self._libraries.get(path) or load_library(path)
        found = {symbol: library.address(symbol) for symbol in symbols}
        self._libraries[path] = library
        return found

    def _load_or_explain(self, compiled: Path, symbols: Sequence[str], unit: TranslationUnit) -> dict[str, int]:
        try:
            return self._load(compiled, symbols)
        except (OSError, AttributeError) as error:
            raise CompilerFailedError(
                "compiled kernels cannot be loaded",
                where=f"source kept in {self._store.keep_failed(unit.text)}",
                why=str(error),
            ) from error

    def _run(self, command: list[str], unit: TranslationUnit, folder: Path) -> None:
        try:
            status, complaints = self._children.run(
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
