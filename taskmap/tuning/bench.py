"""Builds and measures configurations of one operator in this process."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels, ensure_team, stored_kernel
from taskmap.backend.library import load_library
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import CodegenError, CompilerFailedError, LoweringError, ScheduleError
from taskmap.ir.lower.pipeline import lower
from taskmap.options import Options
from taskmap.schedules import read_problem
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.expected import expected
from taskmap.tuning.here import conditions
from taskmap.tuning.job import Job
from taskmap.tuning.operands import Array, BenchOperand, operand

_SERIES_SECONDS = 100e-6
_FEWEST_SERIES = 3


class WrongResultError(Exception):
    """A kernel's result differs from its operator's definition."""


class Bench:
    """The kernels of a job's operator, and their operands. ``refused``: configurations without a kernel, and why."""

    def __init__(self, job: Job) -> None:
        """Raises ScheduleError for an unknown operator, and the errors of finding a compiler and a kernel store."""
        setting = job.setting
        self.problem = read_problem(job.operator.name, job.operator.shapes, job.operator.dtypes, job.operator.layout)
        options = Options(isa=setting.isa, threads=setting.threads, fast_math=setting.fast_math)
        self.target = host_target(options, setting.threads)
        self.toolchain = trusted_toolchain(isa=setting.isa, fast_math=setting.fast_math, cache_dir=setting.cache_dir)
        self.conditions = conditions(self.toolchain, setting.threads)
        self.refused: dict[str, str] = {}
        self._store = KernelStore(None if setting.cache_dir is None else Path(setting.cache_dir))
        self._task = self.problem.task()
        self._functions: dict[str, Callable[..., None]] = {}
        self._calls: dict[str, int] = {}
        self._operands: list[BenchOperand] = []
        self._compare: Callable[[], None]

    def adopt(self, names: Mapping[str, tuple[str, str]]) -> None:
        """Load kernels that the store holds under these keys and symbols."""
        ensure_team(self.toolchain, self._store)
        for config, (key, symbol) in names.items():
            path = self._store.lookup(key, symbol)
            if path is not None:
                self._functions[config] = self._function(load_library(path).address(symbol))

    def build(self, configs: Sequence[str], started: Callable[[str], None]) -> dict[str, tuple[str, str]]:
        """Compile and load kernels that are missing; returns their keys and symbols in the store."""
        sources: dict[str, KernelSource] = {}
        for text in (c for c in configs if c not in self._functions and c not in self.refused):
            started(text)
            try:
                sources[text] = self._source(text)
            except (ScheduleError, LoweringError, CodegenError) as error:
                self.refused[text] = str(error)
        try:
            self._compile(sources)
        except CompilerFailedError:
            for text, source in sources.items():  # find the one at fault
                started(text)
                try:
                    self._compile({text: source})
                except CompilerFailedError as error:
                    self.refused[text] = str(error)
        return {text: self._name(source) for text, source in sources.items() if text in self._functions}

    def check(self, config: str) -> None:
        """Run a kernel once on poisoned memory. Raises WrongResultError."""
        addresses = self._addresses()
        self._functions[config](*addresses)
        self._compare()

    def sample(self, config: str, seconds: float) -> float:
        """Seconds per call: the fastest of several short series, which together take about ``seconds``.

        Other work on the machine interrupts some series and must not count as the kernel's time.
        """
        addresses = self._addresses()
        function = self._functions[config]
        calls = self._calls.get(config)
        if calls is None:
            function(*addresses)
            calls = self._calls[config] = _calls_of(function, addresses)
        function(*addresses)
        fastest = math.inf
        began = now = time.perf_counter()
        done = 0
        while done < _FEWEST_SERIES or now - began < seconds:
            start = time.perf_counter()
            for _ in range(calls):
                function(*addresses)
            now = time.perf_counter()
            fastest = min(fastest, (now - start) / calls)
            done += 1
        return fastest

    def _addresses(self) -> list[int]:
        """Addresses of the operands, which are made on first use; then the symbolic sizes."""
        if not self._operands:
            draw = np.random.default_rng()
            dims = dict(zip(self._task.dims, self.problem.dims(), strict=True))
            inputs = [operand(b, draw, dims) for b in self._task.inputs]
            (out,) = (operand(b, None, dims) for b in self._task.outputs)
            self._operands = [*inputs, out]
            self._compare = _comparison(out, *expected(self.problem, [x.values() for x in inputs]))
        return [*(x.address for x in self._operands), *self.problem.dims()]

    def _source(self, text: str) -> KernelSource:
        config = self.problem.read(text, self.target)
        if config is None:
            raise ScheduleError(f"{text!r} is not a configuration of {self.problem.template} here")
        kernel = self.problem.kernel(self._task, config, self.target)
        return generate(lower(kernel, target=self.target), self.target.vector_bytes)

    def _compile(self, sources: Mapping[str, KernelSource]) -> None:
        if sources:
            loaded = compile_kernels(list(sources.values()), self.toolchain, self._store, Counters())
            self._functions.update({text: self._function(loaded[s.symbol]) for text, s in sources.items()})

    def _name(self, source: KernelSource) -> tuple[str, str]:
        return stored_kernel(source, self.toolchain).key, source.symbol

    def _function(self, address: int) -> Callable[..., None]:
        pointers = [ctypes.c_void_p] * (len(self._task.inputs) + len(self._task.outputs))
        sizes = [ctypes.c_longlong] * len(self._task.dims)
        return ctypes.CFUNCTYPE(None, *pointers, *sizes)(address)


def _comparison(out: BenchOperand, want: Array, limit: float) -> Callable[[], None]:
    """A check of the contents of ``out``, which also poisons it for the next check."""
    out.poison()

    def compare() -> None:
        error = float(np.abs(out.values() - want).max(initial=0.0))
        out.poison()
        if not error <= limit:
            raise WrongResultError(f"the largest error is {error:.3g}, and {limit:.3g} is allowed")

    return compare


def _calls_of(function: Callable[..., None], addresses: list[int]) -> int:
    """The number of calls in a series."""
    once = math.inf
    for _ in range(_FEWEST_SERIES):
        start = time.perf_counter()
        function(*addresses)
        once = min(once, time.perf_counter() - start)
    return max(1, round(_SERIES_SECONDS / max(once, 1e-7)))
