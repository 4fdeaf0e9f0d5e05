"""Products of tiles: the instruction of a warp that computes them with the fewest steps, by division of owners."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from taskmap.ir import repeat, spatial
from taskmap.ir.interp.terms import Memory, value_of
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import INSTRUCTIONS, instruction_named
from taskmap.ir.select.egraph import EGraph
from taskmap.ir.select.terms import Term
from taskmap.ir.select.tiles import WARP, Tile, choose_tiles, rule_of, tile_flaw
from taskmap.ir.target import cuda_target
from taskmap.ir.types import f16, f32, f64

SM80 = cuda_target("sm_80")
MMA = instruction_named("mma_m16n8k16_f16_f32")
SMALL = instruction_named("mma_m8n8k4_f64_f64")
WARPS = [
    i for i in INSTRUCTIONS if isinstance(i.spec, MatMulSpec) and i.workers == WARP and not i.opaque and not i.completes
]


def operands(e: Instruction, m: int, n: int, k: int) -> tuple[Tile, Tile, Tile]:
    """A statement of m×n×k tiles of ``e``, its result held by one warp as e holds it."""
    spec = e.spec
    assert isinstance(spec, MatMulSpec)
    assert e.owner_c is not None
    c = Tile("c", spec.c, (m * spec.m, n * spec.n), repeat(m, n) * e.owner_c)
    return c, Tile("a", spec.a, (m * spec.m, k * spec.k)), Tile("b", spec.b, (k * spec.k, n * spec.n))


@pytest.mark.parametrize("entry", WARPS, ids=lambda e: e.name)
def test_every_instruction_of_a_warp_is_found(entry: Instruction) -> None:
    """By its own owners; or one with as much work per step, where two entries hold c alike."""
    found = choose_tiles(*operands(entry, 2, 2, 1), cuda_target("sm_100a"), INSTRUCTIONS).by
    assert found is not None
    assert found.spec == entry.spec or found.work > entry.work


def test_the_largest_instruction_that_fits_is_chosen() -> None:
    c, a, b = operands(MMA, 2, 4, 2)
    choice = choose_tiles(c, a, b, SM80, INSTRUCTIONS)
    assert choice.by is MMA
    assert choice.second is instruction_named("mma_m16n8k8_f16_f32")
    half = choose_tiles(c, Tile("a", f16, (32, 8)), Tile("b", f16, (8, 32)), SM80, INSTRUCTIONS)
    assert half.by is instruction_named("mma_m16n8k8_f16_f32")


def test_a_result_held_otherwise_is_refused_with_both_owners() -> None:
    c, a, b = operands(MMA, 1, 1, 1)
    other = Tile("c", f32, c.shape, spatial(4, 8) * repeat(4, 1))
    choice = choose_tiles(other, a, b, SM80, INSTRUCTIONS)
    assert choice.by is None
    assert f"c is held by {other.owner}, and mma_m16n8k16_f16_f32 by {MMA.owner_c}." in choice.reasons


def test_operands_in_registers_are_held_as_the_owners_say() -> None:
    c, a, b = operands(MMA, 1, 1, 1)
    assert choose_tiles(c, Tile("a", f16, a.shape, MMA.owner_a), b, SM80, INSTRUCTIONS).by is MMA
    turned = Tile("a", f16, a.shape, spatial(16, 2) * repeat(1, 8))
    choice = choose_tiles(c, turned, b, SM80, INSTRUCTIONS)
    assert choice.by is None
    assert any("a is held by" in reason for reason in choice.reasons)


def test_types_without_an_instruction_have_a_reason() -> None:
    c, a, b = operands(MMA, 1, 1, 1)
    choice = choose_tiles(c, Tile("a", f32, a.shape), Tile("b", f64, b.shape), SM80, INSTRUCTIONS)
    assert choice.by is None
    assert choice.reasons == ("no instruction does f32 × f64 → f32.",)


def wrong_instances(count: int, *, doubled: bool = False) -> int:
    """The instances in which the rule of the smallest product gives another value; doubled: c counted twice."""
    rule, rng = rule_of(SMALL), Random(2)
    wrong = 0
    for _ in range(count):
        statement = rule.instance(rng)
        g = EGraph()
        root = g.insert(statement)
        ((equal,),) = [tuple(rule.rewrite(g, node)) for node in g.nodes(root)]
        found = g.term(equal)
        assert found is not None
        if doubled:
            found = Term("tiled", found.data, (found, *found.args[1:]))
        generator = np.random.default_rng(rng.randrange(1 << 30))
        tiles = [t.data[0] for t in statement.args]
        where = Memory({}, {t.name: generator.integers(-4, 5, t.shape).astype(np.float64) for t in tiles})
        wrong += not np.array_equal(value_of(statement, where), value_of(found, where))
    return wrong


def test_tiles_give_the_product() -> None:
    assert wrong_instances(1000) == 0


def test_a_product_counted_twice_is_caught() -> None:
    assert wrong_instances(10, doubled=True) > 0


def test_the_flaw_of_other_types() -> None:
    c, a, b = operands(SMALL, 1, 1, 1)
    assert tile_flaw(MMA, c, a, b) == "f64 × f64 → f64 is not what mma_m16n8k16_f16_f32 computes."
    assert tile_flaw(SMALL, c, a, b) == ""
