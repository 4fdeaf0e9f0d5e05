"""The configurations of a matrix product, and an estimate of how long each takes: the default is the fastest by it.

Sizes come from the hardware: warps multiply 16 to 64 rows and columns, lines of shared memory are 64 or 128 bytes.
Nothing depends on the divisors of the product's sizes.
"""

from __future__ import annotations

from dataclasses import replace

from taskmap.ir.construct import constant_dim
from taskmap.ir.errors import ScheduleError
from taskmap.ir.instructions import MatMulSpec, instructions_for
from taskmap.ir.nodes import Dim
from taskmap.ir.target import Target
from taskmap.ir.types import f64
from taskmap.schedules.cuda.matmul import is_asynchronous, shared_bytes, validity
from taskmap.schedules.cuda.matmul_config import MatmulConfig
from taskmap.schedules.cuda.product import Product

_GUESS = 512
"""A size that is known only when the kernel runs."""

# (block m, block n, warp m, warp n)
_TENSOR_TILES = (
    (256, 128, 64, 64), (128, 256, 64, 64), (128, 128, 64, 64), (128, 128, 64, 32), (128, 128, 32, 64),
    (256, 64, 64, 32), (64, 256, 32, 64), (128, 64, 64, 32), (64, 128, 32, 64), (64, 64, 32, 32),
    (128, 32, 32, 32), (32, 128, 32, 32), (64, 32, 32, 16), (32, 64, 16, 32), (32, 32, 16, 16),
    (16, 128, 16, 32), (16, 64, 16, 16), (16, 32, 16, 16), (128, 16, 32, 16), (64, 16, 16, 16),
)  # fmt: skip
_THREAD_TILES = (
    (128, 128, 32, 64), (128, 64, 32, 32), (64, 128, 32, 64), (64, 64, 32, 32), (32, 128, 16, 64), (128, 32, 32, 32),
    (32, 64, 16, 32), (64, 32, 16, 32), (32, 32, 16, 16), (16, 64, 8, 32), (64, 16, 16, 16), (16, 32, 8, 16),
    (8, 64, 4, 32), (8, 32, 4, 16),
)  # fmt: skip
_LINES = (64, 128)
_STAGES = (2, 3, 4)


def space(p: Product, target: Target) -> list[MatmulConfig]:
    """Every configuration that can compute ``p`` on ``target``, at most 200."""
    found = [c for c in candidates(p, target) if validity(p, c, target) is None]
    return sorted(found, key=lambda c: estimate(p, c, target))


def candidates(p: Product, target: Target) -> list[MatmulConfig]:
    """Configurations before it is asked whether they fit."""
    engine = tensor_engine(p, target)
    group = 8
    if engine is None:
        size = p.accumulate.bytes
        depths = (8, 16) if size <= 4 else (4, 8)
        return [MatmulConfig("simt", *tile, 2, group) for t in _THREAD_TILES for d in depths for tile in [_with(t, d)]]
    size = p.left.expr.dtype.bytes
    stages = _STAGES if _any_asynchronous(p) else (2,)
    return [
        MatmulConfig(engine, *_with(t, line // size), s, group)
        for t in _TENSOR_TILES
        for line in _LINES
        for s in stages
    ]


def _with(tile: tuple[int, int, int, int], depth: int) -> tuple[int, int, int, int, int]:
    return tile[0], tile[1], depth, tile[2], tile[3]


def _any_asynchronous(p: Product) -> bool:
    return is_asynchronous(p, MatmulConfig("mma", 64, 64, 32, 32, 32))


def tensor_engine(p: Product, target: Target) -> str | None:
    """The tensor-core instruction that multiplies these factors, if the target has one."""
    a, b, c = p.left.expr.dtype, p.right.expr.dtype, p.accumulate
    if c == f64:
        return None
    found = instructions_for(target, MatMulSpec(16, 8, 32, a, b, c)).instructions
    return next((i.name for i in found if i.family == "mma"), None)


def estimate(p: Product, c: MatmulConfig, target: Target) -> float:
    """Seconds that the product takes, roughly: waves of blocks, each bound by what its multiprocessor does slowest.

    The units at work in one step along k are the multipliers, shared memory (128 bytes per clock) and the path to the
    second-level cache (about 48 bytes per clock and multiprocessor); none is faster than the latency of memory over the
    stages in flight. Blocks that share a multiprocessor share its units and hide each other's latency.
    """
    m, n, k = (_known(d) for d in (p.m, p.n, p.k))
    count = 1
    for d in p.batch:
        count *= _known(d)
    tiles = -(-m // c.block_m) * -(-n // c.block_n) * count
    resident = min(blocks_per_sm(p, c, target), -(-tiles // target.cores))
    steps = -(-k // c.block_k)
    size = p.left.expr.dtype.bytes
    down, across = c.warps
    work = 2 * c.block_m * c.block_n * c.block_k
    loaded = (c.block_m + c.block_n) * c.block_k * size
    if c.engine == "simt":
        rate = target.f32_rate * (1 if p.accumulate.bytes <= 4 else 0.5)
        rows, columns = c.thread_tile
        shared = c.block_k * down * across * (rows + columns) / 2 * p.accumulate.bytes / 4
        multiply = work / rate * (1 + 4 / (rows * columns))
    else:
        rate = target.f16_rate * 2 / size * (0.65 if target.capability >= 90 else 0.9)
        read = (c.block_m * across + c.block_n * down) * c.block_k * size
        shared = (read + loaded) / 128
        multiply = work / rate
    through = 1.0 if is_asynchronous(p, c) else 1.3
    busy = max(multiply, shared, loaded / 48) * through
    latency = 700 / (c.stages - 1)
    step = max(busy * resident, latency + busy / 4)
    written = c.block_m * c.block_n * p.stage.out.dtype.bytes / 32 * resident
    clocks = 1500 + steps * step + written
    waves = -(-tiles // (target.cores * resident))
    traffic = (m * k + k * n) * size + m * n * p.stage.out.dtype.bytes
    return max(waves * clocks / target.clock, traffic * count / max(target.memory_bandwidth, 1))


def _known(d: Dim) -> int:
    return constant_dim(d) or _GUESS


def registers(p: Product, c: MatmulConfig) -> int:
    """Registers of a thread, roughly: sums, fragments, what is on its way, addresses."""
    words = max(1, p.accumulate.bytes // 4)
    sums = c.block_m * c.block_n // c.threads * words
    if c.engine == "simt":
        rows, columns = c.thread_tile
        fragments = (rows + columns) * words
    else:
        fragments = (c.warp_m + c.warp_n) // 4
    moving = 0 if is_asynchronous(p, c) else (c.block_m + c.block_n) * c.block_k // c.threads
    return sums + fragments + moving + 40


def blocks_per_sm(p: Product, c: MatmulConfig, target: Target) -> int:
    """How many blocks a multiprocessor holds at once; at least one."""
    by_memory = target.shared_per_sm // (shared_bytes(p, c) + 1024)
    by_registers = target.registers_per_sm // (c.threads * min(255, registers(p, c)))
    by_threads = target.threads_per_sm // c.threads
    return max(1, min(by_memory, by_registers, by_threads, 16))


def choose(p: Product, target: Target) -> MatmulConfig:
    """The fastest configuration by the estimate. Raises ScheduleError when none can compute the product."""
    found = space(p, target)
    if not found:
        raise ScheduleError(
            f"no configuration multiplies {p.left.expr.dtype} by {p.right.expr.dtype} on {target}",
            why=validity(p, candidates(p, target)[0], target),
        )
    best = found[0]
    return replace(best, group=1) if _known(p.m) <= best.block_m else best
