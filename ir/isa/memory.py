"""Data movement by a thread or a warp: ldmatrix and stmatrix, asynchronous copies, cached accesses, atomics."""

from __future__ import annotations

from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.isa import specs
from taskmap.ir.isa.entry import Instruction, Parameter, Place, at_least
from taskmap.ir.types import ALL_DTYPES, DType, bf16, e4m3, e5m2, f16, f32, f64, i32, i64, tf32

_OF_SIZE = {size: tuple(t for t in (*ALL_DTYPES, tf32, e4m3, e5m2) if t.bytes == size) for size in (1, 2, 4, 8)}

COUNT = Parameter("pending", Place.CONSTANT)
"""The number of groups that may still be unfinished."""


def mbarrier() -> Parameter:
    """An mbarrier: 8 bytes of shared memory."""
    return Parameter("barrier", Place.SHARED, "rw", (i64,), bytes=8)


def _matrices(count: int, bytes: int, *, transposed: bool = False, store: bool = False) -> Instruction:
    """The address of lane 8·i + r points at row r of matrix i. A register holds 4 bytes of a row: lane l has those at
    column l mod 4 of row l / 4; transposed (for elements of 2 bytes), two rows of column l / 4."""
    columns, packed = 16 // bytes, 4 // bytes
    held = spatial(4, 8, order=(1, 0)) * repeat(2, 1) if transposed else spatial(8, 4) * repeat(1, packed)
    owner, rows = repeat(count, 1) * held, spatial(8 * count, 1) * repeat(1, columns)
    verb = "stmatrix" if store else "ldmatrix"
    text = f"{verb}_x{count}{'_trans' if transposed else ''}"
    registers = Parameter(
        "registers", Place.REGISTERS, "r" if store else "w", _OF_SIZE[bytes], owner.num_slots, owner=owner
    )
    memory = Parameter("row", Place.SHARED, "w" if store else "r", _OF_SIZE[bytes], bytes=16, owner=rows)
    return Instruction(
        name=text if bytes == 2 else f"{text}_b{8 * bytes}",
        spec=specs.MatrixMoveSpec(count, bytes, transposed, store),
        targets=at_least("sm_90" if store else "sm_75"),
        owner_c=owner,
        owner_a=rows,
        workers=32,
        alignment=16,
        text=f"tm_{text}",
        family=verb,
        parameters=(memory, registers) if store else (registers, memory),
    )


def _copy(bytes: int, *, zero_fill: bool = False) -> Instruction:
    name = f"cp_async_{'zfill_' if zero_fill else ''}{bytes}"
    return Instruction(
        name=name,
        spec=specs.AsyncCopySpec(bytes, zero_fill),
        targets=at_least("sm_80"),
        alignment=bytes,
        text=f"tm_{name}",
        family="cp_async",
        parameters=(
            Parameter("destination", Place.SHARED, "w", bytes=bytes),
            Parameter("source", Place.GLOBAL, bytes=0 if zero_fill else bytes),
            *([Parameter("bytes", Place.VALUE, dtypes=(i32,))] if zero_fill else []),
        ),
        completes="cp_async",
    )


def _group(name: str, action: str, *parameters: Parameter) -> Instruction:
    return Instruction(
        name,
        specs.GroupSpec("cp_async", action),
        at_least("sm_80"),
        text=f"tm_{name}",
        family="cp_async",
        parameters=parameters,
    )


def _cached(cache: str, *, store: bool = False) -> Instruction:
    """A load or a store of ``lanes`` elements, 1, 2, 4, 8 or 16 bytes in all and aligned to that size."""
    name = f"{'store' if store else 'load'}_{cache}"
    memory = Parameter("memory", Place.GLOBAL, "w" if store else "r")
    lanes = Parameter("lanes", Place.CONSTANT, choices=(1, 2, 4, 8, 16))
    return Instruction(
        name=name,
        spec=specs.CachedMoveSpec(cache, store),
        targets=at_least("sm_75"),
        text=f"tm_{name}",
        family="memory",
        parameters=(memory, Parameter("value", Place.VALUE, count=0)) if store else (lanes, memory),
        result=None if store else "memory",
    )


def _prefetch(level: str) -> Instruction:
    return Instruction(
        f"prefetch_{level}",
        specs.PrefetchSpec(level),
        at_least("sm_75"),
        text=f"tm_prefetch_{level}",
        family="memory",
        parameters=(Parameter("memory", Place.GLOBAL),),
    )


def _atomic(
    op: str, dtype: DType, lanes: int = 1, *, shared: bool = False, returns: bool = True, isa: str = "sm_75"
) -> Instruction:
    """An atomic on ``lanes`` neighbours, aligned to their total size."""
    many = "" if lanes == 1 else f"x{lanes}"
    name = f"{'atomic' if returns else 'red'}_{op}_{dtype}{many}{'_shared' if shared else ''}"
    size = dtype.bytes * lanes
    values = ("expected", "value") if op == "cas" else ("value",)
    return Instruction(
        name=name,
        spec=specs.AtomicSpec(op, dtype, lanes, returns, shared),
        targets=at_least(isa),
        alignment=size,
        text=f"tm_{name}",
        family="atomics",
        parameters=(
            Parameter("memory", Place.SHARED if shared else Place.GLOBAL, "rw", (dtype,), bytes=size),
            *(Parameter(value, Place.VALUE, dtypes=(dtype,), count=lanes) for value in values),
        ),
        result="value" if returns else None,
    )


# Operation, element type and number of neighbours of atomics; those that need sm_90 are for global memory only.
_ADDED = (
    (f32, 1, "sm_75"),
    (f64, 1, "sm_75"),
    (f16, 1, "sm_75"),
    (f16, 2, "sm_75"),
    (i32, 1, "sm_75"),
    (i64, 1, "sm_75"),
)
_ADDED_LATER = ((bf16, 1, "sm_90"), (bf16, 2, "sm_90"))
_OTHER = (
    *((op, t) for op in ("min", "max", "cas", "exch") for t in (i32, i64)),
    *((op, i32) for op in ("and", "or", "xor")),
)

_COUNTS = (1, 2, 4)

MEMORY: tuple[Instruction, ...] = (
    *(_matrices(n, size) for size in (2, 4, 1) for n in _COUNTS),
    *(_matrices(n, 2, transposed=True) for n in _COUNTS),
    *(_matrices(n, size, store=True) for size in (2, 4, 1) for n in _COUNTS),
    *(_matrices(n, 2, transposed=True, store=True) for n in _COUNTS),
    *(_copy(size, zero_fill=z) for z in (False, True) for size in (4, 8, 16)),
    _group("cp_async_commit", "commit"),
    _group("cp_async_wait", "wait", COUNT),
    _group("cp_async_wait_all", "wait_all"),
    Instruction(
        "cp_async_mbarrier_arrive",
        specs.MbarrierSpec("arrive_copies"),
        at_least("sm_80"),
        text="tm_cp_async_mbarrier_arrive",
        family="cp_async",
        parameters=(mbarrier(),),
        alignment=8,
        completes="mbarrier",
    ),
    *(_cached(cache) for cache in ("nc", "nc_no_allocate", "no_allocate", "cs", "cg")),
    *(_cached(cache, store=True) for cache in ("cs", "cg", "wt")),
    _prefetch("l1"),
    _prefetch("l2"),
    *(_atomic("add", t, n, isa=isa) for t, n, isa in (*_ADDED, *_ADDED_LATER)),
    *(_atomic("add", t, n, isa=isa, shared=True) for t, n, isa in _ADDED),
    *(_atomic("add", t, n, isa=isa, returns=False) for t, n, isa in (*_ADDED, *_ADDED_LATER)),
    *(_atomic("add", f32, n, isa="sm_90", returns=False) for n in (2, 4)),
    *(_atomic(op, t, shared=shared) for shared in (False, True) for op, t in _OTHER),
)
