"""The configurations of a matrix product, and an estimate of the time of each: the default has the least estimate.

Sizes come from the hardware: warps multiply 16 to 64 rows and columns, lines of shared memory are 64 or 128 bytes.
Nothing depends on the divisors of the product's sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import Instruction, MatMulSpec, instructions_for
from taskmap.ir.nodes import Dim, Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import DType, f32, f64, tf32
from taskmap.schedules.cuda.hopper import matmul as hopper
from taskmap.schedules.cuda.hopper.matmul import HopperConfig, schedule_hopper
from taskmap.schedules.cuda.matmul.config import MatmulConfig, spec_of
from taskmap.schedules.cuda.matmul.problem_view import Gemm
from taskmap.schedules.cuda.matmul.split_k import tiles_of
from taskmap.schedules.cuda.matmul.template import (
    NOT_ROUNDED,
    is_asynchronous,
    schedule_product,
    shared_bytes,
    validity,
)

_GUESS = 512
"""The value assumed for a size that is known only when the kernel runs."""

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
_DEEP = (6,)
_SMALL_TILE = 2048
"""Tiles of at most so many elements load more than they multiply, so loads have to be issued early."""


# (block m, block n, warpgroups)
_WARPGROUP_TILES = (
    (128, 256, 2), (256, 128, 2), (128, 192, 2), (128, 128, 2), (256, 64, 2), (128, 96, 2), (128, 64, 2), (128, 32, 2),
    (128, 128, 1), (64, 256, 1), (64, 192, 1), (64, 128, 1), (64, 96, 1), (64, 64, 1), (64, 32, 1), (64, 16, 1),
)  # fmt: skip
_WARPGROUP = 128
_SHORTEST_SHARE = 4
"""The fewest k-tiles of a block in split-k; with fewer, adding the partial sums takes longer than computing them."""
_RINGS = (2, 3, 4, 6, 8)
_LARGE_TILE, _LARGE_RINGS, _SMALL_RINGS = 128 * 192, (3, 4), (4, 6, 8)
"""The fewest elements of a large tile; the stages of blocks that are persistent or store by TMA, by the tile's size.
Where sums are short, blocks mostly start and store: by both, a 1x1 convolution of 64 channels takes less than half the
time on an H100."""
_BEGINNING = 1500
"""Clock cycles until a block has its first operands."""
_MOST, _MOST_OF_WARPGROUPS = 200, 100
"""The most configurations of an operator; the worst by the estimate are dropped."""

_SPLIT_RING = 4

Config = MatmulConfig | HopperConfig
C = TypeVar("C", MatmulConfig, HopperConfig)


def space(p: Gemm, target: GpuTarget) -> list[Config]:
    """Every configuration that can compute ``p`` on ``target`` without waste, the fastest by the estimate first: at
    most 200, and at most 100 of them for warpgroups."""
    found = [c for c in candidates(p, target) if why_not(p, c, target) is None and wasted(p, c, target) is None]
    found.sort(key=lambda c: (estimate(p, c, target), working_time(p, c, target), -c.stages))
    beyond = [c for c in found if isinstance(c, HopperConfig)][_MOST_OF_WARPGROUPS:]
    return [c for c in found if c not in beyond][:_MOST]


def why_not(p: Gemm, c: Config, target: GpuTarget) -> str | None:
    """The reason why ``c`` cannot compute ``p`` on ``target``, or None if it can."""
    if isinstance(c, HopperConfig):
        return NOT_ROUNDED if c.spec.a == tf32 and not target.tf32 else hopper.validity(p, c, target)
    reason = validity(p, c, target)
    if reason is None and most_registers(p, c, target) > target.registers_per_thread:
        return f"a thread needs about {most_registers(p, c, target)} registers, but has {target.registers_per_thread}"
    return reason


def wasted(p: Gemm, c: Config, target: GpuTarget) -> str | None:
    """The part of ``c`` that the product leaves empty although a smaller configuration would do; None if there is
    none."""
    k = static_size(p.k)
    if k is None:
        return None
    steps = -(-k // c.block_k)
    parts = -(-steps // c.split)
    tile_after_tile = isinstance(c, HopperConfig) and c.persistent  # whose stages hold the next tile's operands
    if c.stages > max(2, parts) and not tile_after_tile:
        return f"{c.stages} stages hold only {parts} k-tiles"
    if isinstance(c, MatmulConfig) and 2 * k <= c.block_k and c.block_k > min(_depths(p, target)):
        return f"a sum of {k} terms leaves most of {c.block_k} empty"
    return None


def schedule_config(p: Gemm, c: Config, target: GpuTarget) -> Kernel:
    """Instantiates the template of ``c``."""
    return schedule_hopper(p, c, target) if isinstance(c, HopperConfig) else schedule_product(p, c, target)


def candidates(p: Gemm, target: GpuTarget) -> list[Config]:
    """All configurations, before their validity is checked."""
    return [*_of_warpgroups(p, target), *_of_warps(p, target)]


def _of_warpgroups(p: Gemm, target: GpuTarget) -> list[Config]:
    if target.isa != "sm_90a":
        return []
    found: list[Config] = []
    a, b, c = _types(p)
    if (a, b, c) == (f32, f32, f32) and target.tf32:
        a = b = tf32
    for m, n, groups in _WARPGROUP_TILES:
        entries = instructions_for(target, MatMulSpec(64, n, 32, a, b, c)).instructions
        name = next((i.name for i in entries if i.family.startswith("wgmma_") and _is_plain(i, n)), None)
        if name is None:
            continue
        found += [HopperConfig(name, m, n, groups, stages) for stages in _RINGS]
        found += _split(p, HopperConfig(name, m, n, groups, _SPLIT_RING), target)
        large = m * n >= _LARGE_TILE
        ways = [(s, way, True) for s in (_LARGE_RINGS if large else _SMALL_RINGS) for way in (False, True)]
        ways += [(s, True, False) for s in _LARGE_RINGS if large]
        found += [HopperConfig(name, m, n, groups, s, persistent=p, boxed=x) for s, p, x in ways]
    return found


def _is_plain(i: Instruction, n: int) -> bool:
    """A product of ``n`` columns with both operands in shared memory."""
    return isinstance(i.spec, MatMulSpec) and i.spec.n == n and i.owner_a is None


def _types(p: Gemm) -> tuple[DType, DType, DType]:
    return p.left.expr.dtype, p.right.expr.dtype, p.accumulate


def _of_warps(p: Gemm, target: GpuTarget) -> list[Config]:
    multiplier = tensor_multiplier(p, target)
    group = 8
    depths = _depths(p, target)
    if multiplier is None:
        alone = [MatmulConfig("simt", *_with(t, d), 2, group) for t in _THREAD_TILES for d in depths]
        return [*alone, *(s for c in alone for s in _split(p, c, target))]
    stages = _STAGES if _any_asynchronous(p, target) else (2,)
    alone = [
        MatmulConfig(multiplier, *_with(t, depth), s, group)
        for t in _TENSOR_TILES
        for depth in depths
        for s in (*stages, *(_DEEP if stages is _STAGES and t[0] * t[1] <= _SMALL_TILE else ()))
    ]
    return [*alone, *(s for c in alone if c.stages in (stages[-1], *_DEEP) for s in _split(p, c, target))]


def _split(p: Gemm, c: C, target: GpuTarget) -> list[C]:
    """``c`` with as many blocks for a sum as give every multiprocessor one block, two and four; none if there are
    enough tiles or sums are short."""
    tiles, k = tiles_of(p, (c.block_m, c.block_n)), static_size(p.k)
    if not tiles or not k or 2 * tiles > target.cores:
        return []
    steps = -(-k // c.block_k)
    shares = {max(_SHORTEST_SHARE, -(-steps * tiles // (blocks * target.cores))) for blocks in (1, 2, 4)}
    counts = sorted({-(-steps // share) for share in shares})
    return [replace(c, split=count) for count in counts if count > 1]


def _depths(p: Gemm, target: GpuTarget) -> tuple[int, ...]:
    """The k extents of a k-tile in shared memory."""
    if tensor_multiplier(p, target) is None:
        return (8, 16) if p.accumulate.bytes <= 4 else (4, 8)
    return tuple(line // p.left.expr.dtype.bytes for line in _LINES)


def _with(tile: tuple[int, int, int, int], depth: int) -> tuple[int, int, int, int, int]:
    return tile[0], tile[1], depth, tile[2], tile[3]


def _any_asynchronous(p: Gemm, target: GpuTarget) -> bool:
    return is_asynchronous(p, MatmulConfig("mma", 64, 64, 32, 32, 32), target)


def tensor_multiplier(p: Gemm, target: GpuTarget) -> str | None:
    """The tensor-core instruction that multiplies these operands, if the target has one."""
    a, b, c = _types(p)
    if c == f64:
        return None
    if (a, b, c) == (f32, f32, f32) and target.tf32:
        a = b = tf32
    found = instructions_for(target, MatMulSpec(16, 8, 32, a, b, c)).instructions
    return next((i.name for i in found if i.family == "mma"), None)


def estimate(p: Gemm, c: Config, target: GpuTarget) -> float:
    """A rough estimate of the product's time in seconds: waves of blocks, each bound by the slowest resource of its
    multiprocessor.

    The resources in one step along k are the multipliers, shared memory (128 bytes per clock) and the path to the
    second-level cache (``target.l2_rate`` bytes per clock and multiprocessor); a step also takes at least the latency
    of memory divided over the stages in flight. Blocks on the same multiprocessor share its resources and hide each
    other's latency.
    """
    m, n, k = (_known(d) for d in (p.m, p.n, p.k))
    traffic = (m * k + k * n) * p.left.expr.dtype.bytes + m * n * p.stage.out.dtype.bytes
    working, streaming = working_time(p, c, target), traffic * _count(p) / max(target.memory_bandwidth, 1)
    if not _is_measured(target):
        return max(working, streaming)
    after = _adding_up(p, c, target) / target.clock  # when all operands have come
    return max(working - after, streaming) + after


def _count(p: Gemm) -> int:
    """Products in a batch."""
    count = 1
    for d in p.batch:
        count *= _known(d)
    return count


def working_time(p: Gemm, c: Config, target: GpuTarget) -> float:
    """Seconds that the multiprocessors would compute if memory were never the limit."""
    m, n, k = (_known(d) for d in (p.m, p.n, p.k))
    split = c.split
    tiles = -(-m // c.block_m) * -(-n // c.block_n) * _count(p) * split
    resident = min(blocks_per_sm(p, c, target), -(-tiles // target.cores))
    steps = -(-k // c.block_k)
    steps = -(-steps // split)
    busy = _clocks(p, c, target)
    step = max(busy * resident, _waiting(busy, c, target))
    whole_lines = isinstance(c, HopperConfig) and c.boxed
    written = c.block_m * c.block_n * p.stage.out.dtype.bytes / (64 if whole_lines else 32) * resident
    clocks = steps * step + written + _adding_up(p, c, target)
    waves = -(-tiles // (target.cores * resident))
    if isinstance(c, HopperConfig) and c.persistent:
        return (_BEGINNING + waves * clocks) / target.clock
    return waves * (_BEGINNING + clocks) / target.clock


def _waiting(busy: float, c: Config, target: GpuTarget) -> float:
    """Clock cycles of one step along k in which a block waits for memory, if nothing else runs beside it."""
    if _is_measured(target):
        return 1200 / (c.stages - 1)
    return 700 / (c.stages - 1) + busy / 4


def _is_measured(target: GpuTarget) -> bool:
    """True for GPUs of the generation of the H100 on which products of 2, 8 and 64 rows by 4096 x 4096 gave the
    constants for latencies, barriers and joins of sums: configurations of a tuner, with operands in the second-level
    cache, and defaults with operands in memory. For others they are guesses."""
    return target.capability == 90


def _adding_up(p: Gemm, c: Config, target: GpuTarget) -> float:
    """Clock cycles to combine the sums of a tile that several blocks share: partial sums go to the second-level cache,
    a counter identifies the last block, and that block reads them all."""
    split = c.split
    if split == 1:
        return 0
    moved = (1 + split) * c.block_m * c.block_n * p.accumulate.bytes
    if _is_measured(target):
        return 5500 + moved / (0.5 * target.l2_rate)
    return 2500 + moved / (0.75 * target.l2_rate)


def _clocks(p: Gemm, c: Config, target: GpuTarget) -> float:
    """Clock cycles of one step along k, for a block alone on its multiprocessor."""
    size = p.left.expr.dtype.bytes
    work = 2 * c.block_m * c.block_n * c.block_k
    loaded = (c.block_m + c.block_n) * c.block_k * size
    if isinstance(c, HopperConfig):
        read = c.block_m + c.block_m // 64 * c.block_n  # lines of 128 bytes: every instruction reads its own columns
        multiply = max(work / (target.f16_rate * 2 / size * 0.9), read + loaded / 128) + 40
        return _together(multiply, loaded / target.l2_rate, hopper.filling_clocks(p, c))
    down, across = c.warps
    if c.multiplier == "simt":
        rate = target.f32_rate * (1 if p.accumulate.bytes <= 4 else 0.5)
        rows, columns = c.thread_tile
        shared = c.block_k * down * across * (rows + columns) / 2 * p.accumulate.bytes / 4
        multiply = work / rate * (1 + 4 / (rows * columns))
    else:
        rate = target.f16_rate * 2 / size * (0.65 if target.capability >= 90 else 0.9)
        read = (c.block_m * across + c.block_n * down) * c.block_k * size
        shared = (read + loaded) / 128
        multiply = work / rate
    through = 1.0 if is_asynchronous(p, c, target) else 1.3
    barriers = 64 if _is_measured(target) else 0
    return _together(multiply, shared, loaded / (0.75 * target.l2_rate)) * through + barriers


def _together(*clocks: float) -> float:
    """Clock cycles of resources that work at the same time: those of the slowest, and a little of the others', so that
    among configurations bound by the same resource the one wins that leaves the others idle."""
    slowest = max(clocks)
    return slowest + (sum(clocks) - slowest) / 32


def _known(d: Dim) -> int:
    return static_size(d) or _GUESS


def registers(p: Gemm, c: MatmulConfig, target: GpuTarget) -> int:
    """A rough estimate of a thread's registers: sums, fragments, loads in flight, addresses."""
    words = max(1, p.accumulate.bytes // 4)
    sums = c.block_m * c.block_n // c.threads * words
    if c.multiplier == "simt":
        rows, columns = c.thread_tile
        fragments = (rows + columns) * words
    else:
        fragments = (c.warp_m + c.warp_n) // 4 * (2 if p.left.expr.dtype == f32 else 1)  # before and after rounding
    loaded = (c.block_m + c.block_n) * c.block_k * p.left.expr.dtype.bytes
    moving = 0 if is_asynchronous(p, c, target) else loaded // 4 // c.threads
    return sums + fragments + moving + 40


def most_registers(p: Gemm, c: MatmulConfig, target: GpuTarget) -> int:
    """Registers of a thread, including those beyond the minimum that the assembler holds: fragments of the next step,
    if a stage has more than two, and the source addresses of its copies.

    Within 10 of the report of NVRTC 13 for asynchronous copies and tiles of 64 × 64 to a warp, where it matters.
    """
    least = registers(p, c, target)
    if not is_asynchronous(p, c, target):
        return least
    known = all(static_size(d) is not None for d in (p.m, p.n, p.k, *p.batch))
    for f, extent in ((p.left, c.block_m), (p.right, c.block_n)):
        copies = -(-extent * c.block_k // (f.lanes * c.threads))
        least += copies * (1 if not f.guarded else 2 if known else 4)
    if c.multiplier == "simt" or p.left.expr.dtype == f32:
        return least
    steps = c.block_k // spec_of(c.multiplier).k
    return least + ((c.warp_m + c.warp_n) * 3 // 16 if steps > 2 else 0)


def blocks_per_sm(p: Gemm, c: Config, target: GpuTarget) -> int:
    """The number of blocks that a multiprocessor holds at once; at least one."""
    if isinstance(c, HopperConfig):
        registers_of = 168 if c.groups > 1 else 255
        if c.persistent:
            return 1
        by_memory = target.shared_per_sm // (c.shared_bytes + 1024)
        return max(1, min(by_memory, target.registers_per_sm // (c.threads * registers_of)))
    by_memory = target.shared_per_sm // (shared_bytes(p, c) + 1024)
    by_registers = target.registers_per_sm // (c.threads * min(255, registers(p, c, target)))
    by_threads = target.threads_per_sm // c.threads
    return max(1, min(by_memory, by_registers, by_threads, 16))


def pressure(p: Gemm, c: Config, target: GpuTarget) -> int:
    """A rough estimate of the registers of a thread that multiplies."""
    if isinstance(c, HopperConfig):
        return c.block_m * c.block_n // (c.groups * _WARPGROUP) + 90
    return registers(p, c, target)


def choose(p: Gemm, target: GpuTarget, attempt: int = 0) -> Config:
    """The fastest configuration by the estimate; each ``attempt`` that ran out of registers moves on to the fastest of
    those that need fewer. Raises ScheduleError if none can compute the product."""
    found = space(p, target)
    if not found:
        raise ScheduleError(
            f"no configuration multiplies {p.left.expr.dtype} by {p.right.expr.dtype} on {target}",
            why=why_not(p, candidates(p, target)[0], target),
        )
    best = found[0]
    for _ in range(attempt):
        fewer = [c for c in found if pressure(p, c, target) < pressure(p, best, target)]
        if not fewer:
            raise ScheduleError("no configuration needs fewer registers", why=f"{best} was the last one.")
        best = fewer[0]
    return replace(best, group=1) if _known(p.m) <= best.block_m else best
