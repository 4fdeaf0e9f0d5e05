"""A table for the tests of the selector: products that no entry of the real table has the form of are among them."""

from __future__ import annotations

from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.isa.entry import Instruction, at_least
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import CPU_INSTRUCTIONS
from taskmap.ir.types import DType, bf16, f32, i8, i32, u8

DOWN = (1, 0)


def pairs(a: DType, b: DType, c: DType, lanes: int, k: int) -> Instruction:
    """Dot products of k neighbours, as vdpbf16ps and vpdpbusd compute them: slot k·j + i of b is b[i, j]."""
    return Instruction(
        name=f"dot_{a}x{lanes}",
        spec=MatMulSpec(1, lanes, k, a, b, c),
        targets=at_least("generic"),
        owner_c=repeat(1, lanes),
        owner_a=repeat(1, k),
        owner_b=repeat(k, lanes, order=DOWN),
        text="{c}",
    )


OUTER = Instruction(
    name="outer_f32",
    spec=MatMulSpec(2, 4, 1, f32, f32, f32),
    targets=at_least("generic"),
    owner_c=repeat(2, 4),
    owner_a=repeat(2, 1),
    owner_b=repeat(1, 4),
    text="{c}",
)
TURNED = Instruction(
    name="turned_bf16",
    spec=MatMulSpec(2, 3, 2, bf16, bf16, f32),
    targets=at_least("generic"),
    owner_c=repeat(2, 3, order=DOWN),
    owner_a=repeat(2, 2),
    owner_b=repeat(2, 3),
    text="{c}",
)

TABLE = (
    *CPU_INSTRUCTIONS,
    pairs(bf16, bf16, f32, 4, 2),
    pairs(bf16, bf16, f32, 16, 2),
    pairs(u8, i8, i32, 4, 4),
    OUTER,
    TURNED,
)
