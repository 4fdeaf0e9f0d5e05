"""Measured peaks of a CPU: multiply-adds from registers, and reads from each level of its memory.

The ceilings of the roofline model (Williams, Waterman and Patterson, CACM 2009; with a ceiling for each cache as Ilic,
Pratas and Sousa, "Cache-aware roofline model", 2014). Each is the best of several short runs, the least disturbed by
other load; the whole takes a few tenths of a second, most of it to initialise the memory that is read.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.team import PARALLEL, PARALLEL_DECLARATION, TEAM, TEAM_DECLARATION
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.target import CpuTarget

_CHAINS = 12  # multiply-adds at once: more than latency × units of any core, and few enough for 16 registers
_STEPS = 1 << 18
_SECONDS = 0.04
_FEWEST_RUNS, _MOST_RUNS = 3, 40
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 256 << 20
_READ_BYTES = 32 << 20
"""About the number of bytes that a run reads, so that it takes milliseconds."""
_DECLARATIONS = f"typedef long long i64;\n{PARALLEL_DECLARATION}\n{TEAM_DECLARATION}"


def measured_peaks(
    target: CpuTarget, threads: int, toolchain: Toolchain, store: KernelStore
) -> tuple[float, dict[str, tuple[int, float]]]:
    """Operations of f32 per second, and for each level of memory its capacity for ``threads`` threads (bytes; 0: all)
    and its read rate in bytes per second.

    Private resources are measured on one core and multiplied: the rate of all cores if nothing else were running.
    Raises CompilerFailedError.
    """
    sources = (_multiply_adds(target.vector_bytes), _reads(target.vector_bytes))
    loaded = compile_kernels(sources, replace(toolchain, contract=True), store, Counters())
    multiply = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p)(loaded[sources[0].symbol])
    sink = np.zeros(16 * threads, np.float32)
    cores = min(threads, detect_host().physical_cores)
    operations = 2 * _CHAINS * (target.vector_bytes // 4) * _STEPS * cores
    rate = operations / _best(lambda: multiply(1, _STEPS, sink.ctypes.data))
    return rate, _bandwidths(target, threads, cores, loaded[sources[1].symbol])


def _bandwidths(target: CpuTarget, threads: int, cores: int, address: int) -> dict[str, tuple[int, float]]:
    most = max(_LEAST_BYTES, min(4 * target.l3, _MOST_BYTES))
    reader = _Reader(address, 8 * target.vector_bytes, most, threads)
    levels = {"L2": (target.l2 * cores, reader.rate(target.l2 // 2, 1) * cores)}
    if target.l3 >= 2 * target.l2 * cores:
        levels["L3"] = (target.l3, max(reader.rate(target.l3 // 2, n) for n in {1, threads}))
    return {**levels, "memory": (0, max(reader.rate(most, n) for n in {1, threads}))}


class _Reader:
    """Reads the same memory repeatedly; ``block``: the bytes that it reads at once."""

    def __init__(self, address: int, block: int, most: int, threads: int) -> None:
        arguments = (ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_void_p)
        self._read = ctypes.CFUNCTYPE(None, *arguments)(address)
        self._block = block
        self._memory = np.ones(most // 4 + 16, np.float32)
        self._sink = np.zeros(16 * threads, np.float32)

    def rate(self, footprint: int, threads: int) -> float:
        """Bytes that ``threads`` threads read per second of ``footprint`` bytes, each its own part."""
        each = max(1, footprint // threads // self._block) * self._block
        times = max(1, _READ_BYTES // (each * threads))
        start = self._memory.ctypes.data + -self._memory.ctypes.data % 64
        took = _best(lambda: self._read(threads, each // 4, times, start, self._sink.ctypes.data))
        return each * threads * times / took


def _best(run: Callable[[], object]) -> float:
    """The shortest of several runs; the first, which wakes threads, does not count."""
    run()
    seconds: list[float] = []
    while len(seconds) < _FEWEST_RUNS or (len(seconds) < _MOST_RUNS and sum(seconds) < _SECONDS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)


def _multiply_adds(vector_bytes: int) -> KernelSource:
    names = [f"a{i}" for i in range(_CHAINS)]
    symbol = f"taskmap_peak_multiply_adds_{vector_bytes}"
    text = f"""\
typedef float tm_peak __attribute__((vector_size({vector_bytes})));
struct {symbol}_data {{ int threads; long long steps; float *out; }};
static void {symbol}_range(const void *data, long long first, long long end)
{{
  const long long steps = ((const struct {symbol}_data *)data)->steps;
  float *const out = ((const struct {symbol}_data *)data)->out;
  for (long long t = first; t < end; t++) {{
    const tm_peak zero = {{0}}, x = zero + 0.999f, y = zero + 0.001f;
    tm_peak {", ".join(f"{name} = zero + {i}.0f" for i, name in enumerate(names))};
    for (long long s = 0; s < steps; s++) {{
{"".join(f"      {name} = {name} * x + y;" + chr(10) for name in names)}    }}
    const tm_peak sum = {" + ".join(names)};
    out[16 * t] = sum[0];
  }}
}}
{_shared_by_threads(symbol)}void {symbol}(int threads, long long steps, float *out)
{{
  struct {symbol}_data data = {{threads, steps, out}};
  {TEAM}({symbol}_body, &data, threads);
}}
"""
    return KernelSource(symbol, text, f"/* multiply-adds, {vector_bytes} */\n{_DECLARATIONS}")


def _reads(vector_bytes: int) -> KernelSource:
    names = [f"a{i}" for i in range(8)]
    symbol = f"taskmap_peak_reads_{vector_bytes}"
    text = f"""\
typedef float tm_read __attribute__((vector_size({vector_bytes})));
struct {symbol}_data {{ int threads; long long each, times; const float *from; float *out; }};
static void {symbol}_range(const void *data, long long first, long long end)
{{
  const struct {symbol}_data *const s = data;
  const long long each = s->each, times = s->times;
  float *const out = s->out;
  for (long long t = first; t < end; t++) {{
    const tm_read zero = {{0}}, *p = (const tm_read *)(s->from + t * each);
    tm_read {", ".join(f"{name} = zero" for name in names)};
    for (long long r = 0; r < times; r++)
      for (long long i = 0; i < each * 4 / {vector_bytes}; i += 8) {{
{"".join(f"        {name} += p[i + {i}];" + chr(10) for i, name in enumerate(names))}      }}
    const tm_read sum = {" + ".join(names)};
    out[16 * t] = sum[0];
  }}
}}
{_shared_by_threads(symbol)}void {symbol}(int threads, long long each, long long times, const float *from, float *out)
{{
  struct {symbol}_data data = {{threads, each, times, from, out}};
  {TEAM}({symbol}_body, &data, threads);
}}
"""
    return KernelSource(symbol, text, f"/* reads, {vector_bytes} */\n{_DECLARATIONS}")


def _shared_by_threads(symbol: str) -> str:
    """A function that runs the ranges of ``threads`` iterations in parallel."""
    return f"""\
static void {symbol}_body(void *at)
{{
  {PARALLEL}({symbol}_range, at, ((const struct {symbol}_data *)at)->threads);
}}
"""
