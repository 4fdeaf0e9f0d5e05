"""Dot products of neighbours: AVX512-BF16, AVX512-VNNI and AVX-VNNI.

    vdpbf16ps   c[j] += a[0] * b[0, j] + a[1] * b[1, j]      bf16 × bf16 → f32
    vpdpwssd    the same                                     i16 × i16 → i32
    vpdpbusd    c[j] += the sum of a[i] * b[i, j], i < 4      u8 × i8 → i32

Column j of b fills one 32-bit lane; a fills one, too, and is broadcast to all. Integer sums wrap. vdpbf16ps adds the
second product first, each by a fused multiply-add that treats denormal operands as zeros and flushes denormal results
(``taskmap.ir.interp.dot_products``). Source: "Intel Architecture Instruction Set Extensions Programming Reference".

In ``LANE_DOTS`` a has a pair for each lane: c[j] += a[j, 0] * b[j, 0] + a[j, 1] * b[j, 1].
"""

from __future__ import annotations

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.isa.entry import Instruction, having
from taskmap.ir.isa.specs import LaneDotSpec, MatMulSpec
from taskmap.ir.types import DType, bf16, f32, i8, i16, i32, u8

__all__ = ["DOT_PRODUCTS", "LANE_DOTS"]

_LANES = (16, 8, 4)


def _dot(name: str, a: DType, b: DType, c: DType, lanes: int, feature: str, form: str = "") -> Instruction:
    k = c.bytes // a.bytes
    return Instruction(
        name=f"{form}{name}_{lanes}",
        spec=MatMulSpec(1, lanes, k, a, b, c),
        targets=having(feature),
        owner_c=repeat(1, lanes),
        owner_a=repeat(1, k),
        owner_b=repeat(k, lanes, order=(1, 0)),
        text=f"tm_{form}{name}_{c}x{lanes}({{c}}, {{a}}, {{b}})",
        family=name,
    )


DOT_PRODUCTS: tuple[Instruction, ...] = (
    *(_dot("vdpbf16ps", bf16, bf16, f32, lanes, "avx512_bf16") for lanes in _LANES),
    *(_dot("vpdpbusd", u8, i8, i32, lanes, "avx512_vnni") for lanes in _LANES),
    *(_dot("vpdpwssd", i16, i16, i32, lanes, "avx512_vnni") for lanes in _LANES),
    *(_dot("vpdpbusd", u8, i8, i32, lanes, "avx_vnni", "vex_") for lanes in _LANES[1:]),
    *(_dot("vpdpwssd", i16, i16, i32, lanes, "avx_vnni", "vex_") for lanes in _LANES[1:]),
)
"""Each with the number of 32-bit lanes in its name; those with the prefix vex_ are of AVX-VNNI, not encoded by EVEX."""

LANE_DOTS: tuple[Instruction, ...] = tuple(
    Instruction(
        name=f"lanes_vdpbf16ps_{lanes}",
        spec=LaneDotSpec(lanes, 2, bf16, bf16, f32),
        targets=having("avx512_bf16"),
        owner_c=repeat(1, lanes),
        owner_a=repeat(lanes, 2),
        owner_b=repeat(lanes, 2),
        text=f"tm_lanes_vdpbf16ps_f32x{lanes}({{c}}, {{a}}, {{b}})",
        family="vdpbf16ps",
    )
    for lanes in _LANES
)
"""The same instruction with a vector for a, the widest first; the interpreter and code generation know it, and no
statement is lowered to it."""
