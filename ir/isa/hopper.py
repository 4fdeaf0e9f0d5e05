"""Hopper's additions: TMA, warpgroup products (wgmma), and registers reallocated between warpgroups (setmaxnreg).

Fragments: NVIDIA, "Parallel Thread Execution ISA", section "Asynchronous Warpgroup Level Matrix Register Layouts". Each
of the four warps holds 16 rows of c and a, spread over its lanes as for mma.sync.
"""

from __future__ import annotations

from functools import lru_cache

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.isa import specs
from taskmap.ir.isa.entry import Instruction, Parameter, Place, at_least, only
from taskmap.ir.isa.memory import COUNT, mbarrier
from taskmap.ir.isa.mma import registers, types_text
from taskmap.ir.types import DType, bf16, e4m3, e5m2, f16, f32, i8, i32, i64, tf32, u8

WARPGROUP = 128
SWIZZLES = (0, 32, 64, 128)
"""In bytes: the span within which a swizzle mixes the 16-byte chunks of a row."""

_HOPPER = only("sm_90a")
_MOVES_REGISTERS = only("sm_90a", "sm_100a", "sm_103a", "sm_120a")
_LARGEST_N = 256


def _value(name: str) -> Parameter:
    return Parameter(name, Place.VALUE, dtypes=(i32,))


# ---- TMA


def _tensor(rank: int, kind: str, *, multicast: bool = False) -> Instruction:
    verb = {"load": "load_multicast" if multicast else "load", "store": "store", "add": "reduce_add"}[kind]
    name = f"tma_{verb}_{rank}d"
    load = kind == "load"
    memory = Parameter("destination" if load else "source", Place.SHARED, "w" if load else "r")
    described = Parameter("map", Place.TENSOR_MAP, "r" if load else "w" if kind == "store" else "rw")
    coordinates = tuple(_value(f"c{d}") for d in range(rank))
    mask = (_value("blocks"),) if multicast else ()
    return Instruction(
        name=name,
        spec=specs.TensorMoveSpec(rank, kind, multicast),
        targets=at_least("sm_90"),
        alignment=128,
        text=f"tm_{name}",
        family="tma",
        parameters=(memory, described, mbarrier(), *mask, *coordinates) if load else (described, memory, *coordinates),
        completes="mbarrier" if load else "bulk",
    )


def _tma(name: str, spec: specs.Spec, *parameters: Parameter, alignment: int = 1, completes: str = "") -> Instruction:
    return Instruction(
        name,
        spec,
        at_least("sm_90"),
        alignment=alignment,
        text=f"tm_{name}",
        family="tma",
        parameters=parameters,
        completes=completes,
    )


_TMA = (
    *(_tensor(rank, "load") for rank in range(1, 6)),
    *(_tensor(rank, "load", multicast=True) for rank in range(1, 6)),
    *(_tensor(rank, kind) for kind in ("store", "add") for rank in range(1, 6)),
    _tma("tma_commit", specs.GroupSpec("bulk", "commit")),
    _tma("tma_wait", specs.GroupSpec("bulk", "wait"), COUNT),
    _tma("tma_wait_read", specs.GroupSpec("bulk", "wait_read"), COUNT),
    _tma(
        "bulk_load",
        specs.BulkCopySpec(),
        Parameter("destination", Place.SHARED, "w"),
        Parameter("source", Place.GLOBAL),
        _value("bytes"),
        mbarrier(),
        alignment=16,
        completes="mbarrier",
    ),
    _tma(
        "bulk_store",
        specs.BulkCopySpec(store=True),
        Parameter("destination", Place.GLOBAL, "w"),
        Parameter("source", Place.SHARED),
        _value("bytes"),
        alignment=16,
        completes="bulk",
    ),
    _tma("prefetch_tensor_map", specs.PrefetchSpec("tensor_map"), Parameter("map", Place.TENSOR_MAP)),
)

# ---- wgmma


@lru_cache(maxsize=64)
def accumulator(n: int) -> TaskMapping:
    """The owner of the 64×n result: warp w holds rows 16·w to 16·w + 15, in blocks of eight columns."""
    return repeat(1, n // 8) * spatial(4, 1) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)


@lru_cache(maxsize=8)
def _left(dtype: DType) -> TaskMapping:
    """The owner of the 64×k left operand in registers, where k spans 32 bytes."""
    return spatial(4, 1) * repeat(2, 2, order=(1, 0)) * spatial(8, 4) * repeat(1, 4 // dtype.bytes)


def _product(n: int, a: DType, b: DType, c: DType, *, left_in_registers: bool) -> Instruction:
    """d = a @ b, or d += a @ b if ``accumulate`` is not 0. Operands in shared memory are given by descriptors.

    Operands of 16-bit elements may also be stored with m or n contiguous instead of k; constants select that.
    """
    k = 32 // a.bytes
    types = types_text(a, b, c)
    family = f"wgmma_m64n{n}k{k}_{types}"
    name = f"wgmma_ra_m64n{n}k{k}_{types}" if left_in_registers else family
    owner_c, owner_a = accumulator(n), _left(a) if left_in_registers else None
    turned = ("b",) if left_in_registers else ("a", "b")
    constants = (
        tuple(Parameter(f"transpose_{x}", Place.CONSTANT, choices=(0, 1)) for x in turned) if a.bits == 16 else ()
    )
    descriptor = {x: Parameter(x, Place.VALUE, dtypes=(i64,)) for x in "ab"}
    left = registers("a", a, owner_a) if owner_a else descriptor["a"]
    return Instruction(
        name=name,
        spec=specs.MatMulSpec(64, n, k, a, b, c),
        targets=_HOPPER,
        owner_c=owner_c,
        owner_a=owner_a,
        workers=WARPGROUP,
        alignment=16,
        text=f"tm_{name}",
        family=family,
        parameters=(*constants, registers("d", c, owner_c, "rw"), left, descriptor["b"], _value("accumulate")),
        completes="wgmma",
    )


def _columns(dtype: DType) -> tuple[int, ...]:
    """The supported n: multiples of 8; for integers above 24, multiples of 16."""
    every = range(8, _LARGEST_N + 1, 8)
    return tuple(n for n in every if not dtype.is_int or n <= 24 or n % 16 == 0)


_TYPES = (
    (f16, f16, f32),
    (bf16, bf16, f32),
    (f16, f16, f16),
    (tf32, tf32, f32),
    *((a, b, f32) for a in (e4m3, e5m2) for b in (e4m3, e5m2)),
    *((a, b, i32) for a in (i8, u8) for b in (i8, u8)),
)


def _group(name: str, action: str, *parameters: Parameter) -> Instruction:
    spec = specs.GroupSpec("wgmma", action)
    return Instruction(name, spec, _HOPPER, workers=WARPGROUP, text=f"tm_{name}", family="wgmma", parameters=parameters)


_HELD = (f32, i32, f16, bf16, tf32, i8, u8, e4m3, e5m2)

_WGMMA = (
    _group("wgmma_fence", "begin"),
    _group("wgmma_commit", "commit"),
    _group("wgmma_wait", "wait", COUNT),
    Instruction(
        "wgmma_hold",
        specs.RegisterHoldSpec(),
        _HOPPER,
        workers=WARPGROUP,
        text="tm_wgmma_hold",
        family="wgmma",
        parameters=(Parameter("slots", Place.CONSTANT), Parameter("d", Place.REGISTERS, "rw", _HELD, count=0)),
    ),
    Instruction(
        "wgmma_descriptor",
        specs.DescriptorSpec(),
        _HOPPER,
        alignment=16,
        text="tm_wgmma_descriptor",
        family="wgmma",
        parameters=(
            Parameter("swizzle", Place.CONSTANT, choices=SWIZZLES),
            Parameter("matrix", Place.SHARED),
            _value("leading"),
            _value("stride"),
        ),
        result=i64,
    ),
    *(
        _product(n, a, b, c, left_in_registers=held)
        for a, b, c in _TYPES
        for n in _columns(a)
        for held in (False, True)
    ),
)


def _limit(name: str, *, grow: bool) -> Instruction:
    count = Parameter("registers", Place.CONSTANT, choices=tuple(range(24, 257, 8)))
    return Instruction(
        name,
        specs.RegisterLimitSpec(grow),
        _MOVES_REGISTERS,
        workers=WARPGROUP,
        text=f"tm_{name}",
        family="registers",
        parameters=(count,),
    )


HOPPER: tuple[Instruction, ...] = (
    *_TMA,
    *_WGMMA,
    _limit("setmaxnreg_inc", grow=True),
    _limit("setmaxnreg_dec", grow=False),
)
