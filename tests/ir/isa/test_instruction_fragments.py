"""Fragment owners: those of the table against the formulas of the PTX ISA, transcribed here independently.

There groupID = lane / 4 and threadID_in_group = lane mod 4; ``g`` and ``t`` below.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.isa.table import INSTRUCTIONS, Instruction, instruction_named

Formula = Callable[[int, int, int], tuple[int, int]]
"""Row and column of register element i of a lane, from g, t and i."""


# Section "Matrix Fragments for mma.m...", by shape and by the bits of an element of a and b.
def c_of_16x8(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, 2 * t + (i & 1))


A: dict[tuple[str, int], Formula] = {
    ("m16n8k16", 16): lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, 2 * t + (i & 1) + (0 if i < 4 else 8)),
    ("m16n8k8", 16): lambda g, t, i: (g if i < 2 else g + 8, 2 * t + (i & 1)),
    ("m16n8k8", 32): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ("m16n8k4", 32): lambda g, t, i: (g if i == 0 else g + 8, t),
    ("m16n8k16", 8): lambda g, t, i: (g if i < 4 else g + 8, 4 * t + (i & 3)),
    ("m16n8k32", 8): lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, 4 * t + (i & 3) + (0 if i < 8 else 16)),
    ("m8n8k16", 8): lambda g, t, i: (g, 4 * t + i),
    ("m8n8k4", 64): lambda g, t, i: (g, t),
}
B: dict[tuple[str, int], Formula] = {
    ("m16n8k16", 16): lambda g, t, i: (2 * t + (i & 1) + (0 if i < 2 else 8), g),
    ("m16n8k8", 16): lambda g, t, i: (2 * t + i, g),
    ("m16n8k8", 32): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("m16n8k4", 32): lambda g, t, i: (t, g),
    ("m16n8k16", 8): lambda g, t, i: (4 * t + i, g),
    ("m16n8k32", 8): lambda g, t, i: (4 * t + (i & 3) + (0 if i < 4 else 16), g),
    ("m8n8k16", 8): lambda g, t, i: (4 * t + i, g),
    ("m8n8k4", 64): lambda g, t, i: (t, g),
}
C: dict[str, Formula] = {"m8n8k16": lambda g, t, i: (g, 2 * t + i), "m8n8k4": lambda g, t, i: (g, 2 * t + i)}

MMA = [i for i in INSTRUCTIONS if i.name.startswith("mma_")]


def check(owner: TaskMapping | None, formula: Formula, slots: int) -> None:
    assert owner is not None
    assert owner.num_workers == 32
    for lane in range(32):
        assert owner(lane) == [formula(lane >> 2, lane % 4, i) for i in range(slots)]


@pytest.mark.parametrize("entry", MMA, ids=lambda i: i.name)
def test_mma(entry: Instruction) -> None:
    shape = entry.name.split("_")[1]
    c, a, b = entry.parameters
    bits = a.dtypes[0].bits
    check(entry.owner_a, A[shape, bits], a.count)
    check(entry.owner_b, B[shape, bits], b.count)
    check(entry.owner_c, C.get(shape, c_of_16x8), c.count)


def test_every_shape_of_mma_was_compared() -> None:
    assert {(i.name.split("_")[1], i.parameters[1].dtypes[0].bits) for i in MMA} == set(A) == set(B)


@pytest.mark.parametrize("result", ["f32", "f16"])
def test_mma_of_quad_pairs(result: str) -> None:
    """Section "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"; x is the number of the element."""
    entry = instruction_named(f"quad_mma_m8n8k4_f16_{result}")
    strided = instruction_named(f"quad_mma_m8n8k4_f16_{result}_strided")
    for lane in range(32):
        member = lane % 4 if lane < 16 else lane % 4 + 4
        row, column = 8 * (lane // 4 % 2), 8 * (lane // 8 % 2)  # of the quad-pair's 8×8, column by column
        a = [(member, x) for x in range(4)]
        b = [(x, member) for x in range(4)]
        if result == "f16":
            c = [(member, x) for x in range(8)]
        else:
            base = (lane & 1) + (0 if lane < 16 else 4)
            c = [(base + (x & 2), (x & 4) + (lane & 2) + (x & 1)) for x in range(8)]
        for instruction, there in ((entry, lambda i, first: first + i), (strided, apart)):
            assert instruction.owner_a is not None
            assert instruction.owner_b is not None
            assert instruction.owner_c is not None
            assert instruction.owner_a(lane) == [(there(i, row), k) for i, k in a]
            assert instruction.owner_b(lane) == [(k, there(j, column)) for k, j in b]
            assert instruction.owner_c(lane) == [(there(i, row), there(j, column)) for i, j in c]


def apart(i: int, first: int) -> int:
    """Element i of 8 in two pieces of 4, 8 apart."""
    return i // 4 * 8 + first // 2 + i % 4


WGMMA_A: dict[int, Formula] = {
    16: lambda g, t, i: (g + 8 * (i // 2 % 2), 2 * t + i % 2 + 8 * (i // 4)),
    32: lambda g, t, i: (g + 8 * (i % 2), t + 4 * (i // 2)),
    8: lambda g, t, i: (g + 8 * (i // 4 % 2), 4 * t + i % 4 + 16 * (i // 8)),
}


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_the_accumulator_of_wgmma(n: int) -> None:
    """Section "Register Fragments for wgmma.mma_async": row 16·warp + ..., eight columns after eight."""
    owner = instruction_named(f"wgmma_m64n{n}k16_f16_f32").owner_c
    assert owner is not None
    assert owner.task_shape == (64, n)
    for thread in range(0, 128, 7):
        warp, g, t = thread // 32, thread % 32 >> 2, thread % 4
        want = [(16 * warp + g + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * t + i % 2) for i in range(n // 2)]
        assert owner(thread) == want


@pytest.mark.parametrize(("types", "k", "bits"), [("bf16_f32", 16, 16), ("tf32_f32", 8, 32), ("i8_u8_i32", 32, 8)])
def test_the_left_operand_of_wgmma_in_registers(types: str, k: int, bits: int) -> None:
    entry = instruction_named(f"wgmma_ra_m64n64k{k}_{types}")
    assert entry.owner_a is not None
    assert entry.owner_a.task_shape == (64, k)
    for thread in range(128):
        warp, g, t = thread // 32, thread % 32 >> 2, thread % 4
        rows = [WGMMA_A[bits](g, t, i) for i in range(entry.owner_a.num_slots)]
        assert entry.owner_a(thread) == [(16 * warp + row, column) for row, column in rows]


def test_integers_are_multiplied_with_fewer_n() -> None:
    """Section "wgmma.mma_async": for integers, above 24 only multiples of 16."""
    for n in range(8, 257, 8):
        exists = any(i.name == f"wgmma_m64n{n}k32_i8_i32" for i in INSTRUCTIONS)
        assert exists == (n in (8, 16, 24) or n % 16 == 0)


@pytest.mark.parametrize(("count", "bytes"), list(product((1, 2, 4), (1, 2, 4))))
def test_ldmatrix(count: int, bytes: int) -> None:
    """Section "ldmatrix": lane l gets bytes 4·(l mod 4) to 4·(l mod 4) + 3 of row l / 4 of each matrix."""
    entry = instruction_named(f"ldmatrix_x{count}" + {1: "_b8", 2: "", 4: "_b32"}[bytes])
    assert entry.owner_c is not None
    assert entry.owner_c.task_shape == (8 * count, 16 // bytes)
    packed = 4 // bytes
    for lane in range(32):
        want = [(8 * i + lane // 4, packed * (lane % 4) + e) for i in range(count) for e in range(packed)]
        assert entry.owner_c(lane) == want


@pytest.mark.parametrize("verb", ["ldmatrix", "stmatrix"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_transposed(verb: str, count: int) -> None:
    """Each matrix is transposed as it is loaded: a lane holds two rows of one column."""
    entry = instruction_named(f"{verb}_x{count}_trans")
    assert entry.owner_c is not None
    for lane in range(32):
        assert entry.owner_c(lane) == [(8 * i + 2 * (lane % 4) + e, lane // 4) for i in range(count) for e in range(2)]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_rows_of_a_matrix_are_addressed_by_lanes(count: int) -> None:
    rows = instruction_named(f"ldmatrix_x{count}").owner_a
    assert rows is not None
    assert rows.num_workers == 8 * count
    assert all(rows(lane) == [(lane, column) for column in range(8)] for lane in range(8 * count))


def test_ldmatrix_makes_the_fragments_of_mma() -> None:
    """A 16×16 left operand by four matrices, a 16×8 right one, stored row by row, by two transposed ones."""
    mma = instruction_named("mma_m16n8k16_f16_f32")
    four, two = instruction_named("ldmatrix_x4").owner_c, instruction_named("ldmatrix_x2_trans").owner_c
    assert four is not None
    assert two is not None
    assert mma.owner_a is not None
    for lane in range(32):
        # Matrix 0 is the upper left quarter, 1 the one below it, 2 the one beside it.
        quarters = [(row % 8 + row // 8 % 2 * 8, column + row // 16 * 8) for row, column in four(lane)]
        assert quarters == mma.owner_a(lane)
    assert two == mma.owner_b
