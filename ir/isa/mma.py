"""Warp-level tensor core products with documented fragments (mma.sync), and a thread's dot products (dp4a).

Fragment owners: NVIDIA, "Parallel Thread Execution ISA", section "Matrix Fragments for mma.m16n8k16 with floating point
type" and its neighbours. There groupID = lane / 4 and threadID_in_group = lane mod 4, which is spatial(8, 4) here; a
register of several elements is a fastest repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.algebra.digits import Digit, DigitMap, coalesce
from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.isa.entry import Instruction, Parameter, Place, at_least
from taskmap.ir.isa.specs import ConvertSpec, MatMulSpec
from taskmap.ir.types import DType, bf16, e4m3, e5m2, f16, f32, f64, i8, i32, tf32, u8

_DOWN = (1, 0)  # order: the first dimension fastest


def registers(name: str, dtype: DType, owner: TaskMapping, effect: str = "r") -> Parameter:
    """A fragment: the slots that ``owner`` gives to one worker."""
    return Parameter(name, Place.REGISTERS, effect, (dtype,), owner.num_slots, owner=owner)


def types_text(a: DType, b: DType, c: DType) -> str:
    """f16_f32, or i8_u8_i32 where the operands differ."""
    return "_".join(map(str, (a, c) if a == b else (a, b, c)))


def _mma(m: int, n: int, k: int, a: DType, b: DType, c: DType, isa: str) -> Instruction:
    """c += a @ b by a warp. Along k, a register holds as many neighbours as fit into 32 bits."""
    packed = max(1, 32 // a.bits)
    blocks = k // (4 * packed)
    owner_a = repeat(m // 8, blocks, order=_DOWN) * spatial(8, 4) * repeat(1, packed)
    owner_b = repeat(blocks, 1) * spatial(4, 8, order=_DOWN) * repeat(packed, 1)
    owner_c = repeat(m // 8, 1) * spatial(8, 4) * repeat(1, 2)
    name = f"mma_m{m}n{n}k{k}_{types_text(a, b, c)}"
    return Instruction(
        name=name,
        spec=MatMulSpec(m, n, k, a, b, c),
        targets=at_least(isa),
        owner_c=owner_c,
        owner_a=owner_a,
        owner_b=owner_b,
        workers=32,
        text=f"tm_{name}",
        family="mma",
        parameters=(registers("c", c, owner_c, "rw"), registers("a", a, owner_a), registers("b", b, owner_b)),
    )


def _by_bits(
    shape: tuple[int, int], workers: Sequence[tuple[int, int]], slots: Sequence[tuple[int, int]]
) -> TaskMapping:
    """An owner given bit by bit, the highest first: each bit of a lane or a slot is a (dimension, stride)."""
    lanes, held = (coalesce([Digit(2, *bit) for bit in bits]) for bits in (workers, slots))
    return TaskMapping(shape, (DigitMap(shape, lanes, held),), f"quad_pairs({shape[0]}, {shape[1]})")


def _quad_pairs(c: DType, *, strided: bool) -> Instruction:
    """Four products of 8×8×4, each by a quad-pair: lanes 4q to 4q + 3, and 16 more. Together they are one of 16×16×4,
    whose 2×2 parts the quad-pairs take column by column: blocks of 8×8, or each 2×2 pieces of 4×4, 8 apart.

    PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"; Fireiron (PACT 2020), figure 8.
    """
    half, pair = (8, 4) if strided else (4, 8)
    rows, columns = [(0, half), (0, 0), (0, pair), (0, 2), (0, 1)], [(1, half), (1, pair), (1, 0), (1, 2), (1, 1)]
    held = [(1, half), (1, 2), (1, 1)] if c == f16 else [(1, half), (0, 2), (1, 1)]
    low = [(0, 2), (0, 1)] if c == f16 else [(1, 2), (0, 1)]
    owner_c = _by_bits((16, 16), [(0, half), (1, pair), (0, pair), *low], held)
    owner_a, owner_b = _by_bits((16, 4), rows, [(1, 2), (1, 1)]), _by_bits((4, 16), columns, [(0, 2), (0, 1)])
    text = f"tm_quad_mma_m8n8k4_{types_text(f16, f16, c)}"
    return Instruction(
        name=text.removeprefix("tm_") + ("_strided" if strided else ""),
        spec=MatMulSpec(16, 16, 4, f16, f16, c),
        targets=at_least("sm_75"),
        owner_c=owner_c,
        owner_a=owner_a,
        owner_b=owner_b,
        workers=32,
        text=text,
        family="mma",
        parameters=(registers("c", c, owner_c, "rw"), registers("a", f16, owner_a), registers("b", f16, owner_b)),
    )


def _dot(a: DType, b: DType) -> Instruction:
    """The dot product of four bytes, by one thread."""
    c, left, right = repeat(1, 1), repeat(1, 4), repeat(4, 1)
    name = f"dp4a_{types_text(a, b, i32)}"
    return Instruction(
        name=name,
        spec=MatMulSpec(1, 1, 4, a, b, i32),
        targets=at_least("sm_75"),
        owner_c=c,
        owner_a=left,
        owner_b=right,
        text=f"tm_{name}",
        family="dot",
        parameters=(registers("c", i32, c, "rw"), registers("a", a, left), registers("b", b, right)),
    )


_ROUND_TF32 = Instruction(
    name="round_tf32",
    spec=ConvertSpec(f32, tf32, ties="away"),
    targets=at_least("sm_80"),
    text="tm_round_tf32",
    family="mma",
    parameters=(Parameter("x", Place.VALUE, dtypes=(f32,)),),
    result=tf32,
)

_BYTES = (i8, u8)
_FP8 = (e4m3, e5m2)

MMA: tuple[Instruction, ...] = (
    _mma(16, 8, 16, f16, f16, f32, "sm_80"),
    _mma(16, 8, 16, bf16, bf16, f32, "sm_80"),
    _mma(16, 8, 16, f16, f16, f16, "sm_80"),
    _mma(16, 8, 8, f16, f16, f32, "sm_75"),
    _mma(16, 8, 8, f16, f16, f16, "sm_75"),
    _mma(16, 8, 8, bf16, bf16, f32, "sm_80"),
    _mma(16, 8, 8, tf32, tf32, f32, "sm_80"),
    _mma(16, 8, 4, tf32, tf32, f32, "sm_80"),
    *(_mma(16, 8, 32, a, b, i32, "sm_80") for a in _BYTES for b in _BYTES),
    *(_mma(16, 8, 16, a, b, i32, "sm_80") for a in _BYTES for b in _BYTES),
    *(_mma(8, 8, 16, a, b, i32, "sm_75") for a in _BYTES for b in _BYTES),
    *(_mma(16, 8, 32, a, b, f32, "sm_89") for a in _FP8 for b in _FP8),
    _mma(8, 8, 4, f64, f64, f64, "sm_80"),
    *(_quad_pairs(c, strided=s) for c in (f32, f16) for s in (False, True)),
    *(_dot(a, b) for a in _BYTES for b in _BYTES),
    _ROUND_TF32,
)
