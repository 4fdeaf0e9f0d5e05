"""Rows of registers in pieces: the fewest instructions that cover them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.isa.table import CPU_INSTRUCTIONS, INSTRUCTIONS
from taskmap.ir.select.rows import Piece, copy_pieces, product_pieces
from taskmap.ir.target import cpu_target
from taskmap.ir.types import DType, bf16, boolean, e4m3, f32, f64, i8, i32, i64, u8
from tests.ir.select.entries import pairs

ISAS = {"avx512": 64, "avx2": 32, "generic": 16}


def greedy(n: int, widest: int) -> list[tuple[int, int]]:
    """(count, lanes) of the widest vectors that fit, repeatedly: the reference."""
    found = []
    while widest > 1:
        if n // widest:
            found.append((n // widest, widest))
            n %= widest
        widest //= 2
    return [*found, (n, 1)] if n else found


@given(st.integers(1, 300), st.sampled_from(sorted(ISAS)), st.sampled_from([f32, f64]))
@settings(max_examples=60, deadline=None)
def test_a_product_has_the_fewest_vectors(n: int, isa: str, dtype: DType) -> None:
    pieces = product_pieces(n, dtype, dtype, dtype, cpu_target(isa, 1), CPU_INSTRUCTIONS)
    assert [(p.count, p.lanes) for p in pieces] == greedy(n, ISAS[isa] // dtype.bytes)
    assert [p.start for p in pieces] == [sum(p.count * p.lanes for p in pieces[:i]) for i in range(len(pieces))]
    assert all((p.by is None) == (p.lanes == 1) for p in pieces)


@given(
    st.integers(1, 40_000), st.sampled_from(sorted(ISAS)), st.sampled_from([f32, u8, i32]), st.sampled_from([f32, i8])
)
@settings(max_examples=60, deadline=None)
def test_a_copy_has_the_fewest_vectors_that_both_types_have(n: int, isa: str, to: DType, of: DType) -> None:
    pieces = copy_pieces(n, to, of, cpu_target(isa, 1), CPU_INSTRUCTIONS)
    assert [(p.count, p.lanes) for p in pieces] == greedy(n, ISAS[isa] // max(to.bytes, of.bytes))


def test_operands_of_other_types_are_converted() -> None:
    found = product_pieces(24, bf16, bf16, f32, cpu_target("avx512", 1), CPU_INSTRUCTIONS)
    assert [(p.count, p.lanes, p.by.name if p.by else "") for p in found] == [
        (1, 16, "fma_f32x16"),
        (1, 8, "fma_f32x8"),
    ]


def test_types_without_instructions_are_scalar() -> None:
    target = cpu_target("avx512", 1)
    assert product_pieces(7, i8, i8, i64, target, INSTRUCTIONS) == (Piece(0, 7, 1),)
    assert copy_pieces(9, e4m3, f32, target, CPU_INSTRUCTIONS) == (Piece(0, 9, 1),)
    assert copy_pieces(0, f32, f32, target, CPU_INSTRUCTIONS) == ()
    assert copy_pieces(16, boolean, boolean, target, CPU_INSTRUCTIONS)[0].lanes == 16


@pytest.mark.parametrize("n", [16, 48])
def test_a_product_of_pairs_does_not_compute_a_row_of_single_terms(n: int) -> None:
    table = (*CPU_INSTRUCTIONS, pairs(bf16, bf16, f32, 16, 2))
    (piece,) = product_pieces(n, bf16, bf16, f32, cpu_target("avx512", 1), table)
    assert piece.by is not None
    assert piece.by.name == "fma_f32x16"
