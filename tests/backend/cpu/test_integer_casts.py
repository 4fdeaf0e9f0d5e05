"""Integers of another width: one instruction where the wider vector fills a register. Their results are tested with all
other casts."""

from __future__ import annotations

import itertools

import pytest

from taskmap.backend.cpu.math.integer_casts import in_one_instruction
from taskmap.backend.cpu.math.types import Vector

TYPES = ("i8", "u8", "i16", "u16", "i32", "i64")


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("source", "target"), [*itertools.permutations(TYPES, 2)])
def test_registers_that_one_instruction_fills(source: str, target: str, lanes: int) -> None:
    """Every widening cast of AVX2 and AVX-512, and every narrowing one of AVX-512; nothing that takes several."""
    s, t = Vector(source, lanes), Vector(target, lanes)
    for vector_bytes in (32, 64):
        found = in_one_instruction(s, t, vector_bytes)
        fits = s.bits != t.bits and max(s.bytes, t.bytes) <= vector_bytes
        assert (found is not None) == (fits and (s.bits < t.bits or vector_bytes == 64))
        if found is not None:
            assert found.count("vpmov") == 1
            assert ("zx" in found) == (s.bits < t.bits and source[0] == "u")
    assert in_one_instruction(s, t, 16) is None


@pytest.mark.parametrize(("source", "target"), [("m32", "m8"), ("f32", "i8"), ("i32", "bf16"), ("b8", "i32")])
def test_other_casts_are_not_meant(source: str, target: str) -> None:
    assert in_one_instruction(Vector(source, 16), Vector(target, 16), 64) is None
