"""Products of bf16 and int8 are found however they are written, and keep their value; a demanded unit that cannot be
used is refused with its operand's digits."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from taskmap.ir.errors import LoweringError, SelectionLimitError
from taskmap.ir.interp.terms import Memory, value_of
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import CPU_INSTRUCTIONS
from taskmap.ir.select.choose import choose, demand
from taskmap.ir.select.rule import Limits
from taskmap.ir.select.terms import Term, binary, broadcast, cast, const, instructions_of, load, ramp, total, var
from taskmap.ir.target import cpu_target
from taskmap.ir.types import DType, bf16, f32, i8, i32, u8
from tests.ir.select.entries import TABLE, TURNED, pairs

TARGET = cpu_target("avx512", 1)
DOT = next(e for e in TABLE if e.name == "dot_bf16x16")
DP4 = next(e for e in TABLE if e.name == "dot_u8x4")


def times(a: Term, b: Term) -> Term:
    return Term("mul", (), (a, b))


def plus(a: Term, b: Term) -> Term:
    return Term("add", (), (a, b))


def standard(n: int, k: int) -> Term:
    """B by rows: its pairs lie a row apart."""
    return ramp(ramp(var("b"), var("s"), k), 1, n)


def transposed(n: int, k: int) -> Term:
    """B by columns: its pairs are neighbours."""
    return ramp(ramp(var("b"), 1, k), var("s"), n)


def packed(n: int, k: int, group: int = 2) -> Term:
    """B with pairs (or fours) of rows interleaved, addressed by remainders and quotients."""
    depth = broadcast(ramp(0, 1, k), n)
    column = ramp(broadcast(0, k), group, n)
    inside = plus(binary("mod", depth, group), column)
    block = times(binary("div", depth, group), broadcast(times(const(group), var("s")), n * k))
    return plus(plus(inside, block), broadcast(var("b"), n * k))


def packed_nest(n: int, k: int) -> Term:
    """The same as a nest of ramps."""
    return ramp(ramp(ramp(var("b"), 1, 2), times(const(2), var("s")), k // 2), 2, n)


def row_of_a(n: int, k: int) -> Term:
    return broadcast(ramp(var("a"), 1, k), n)


def accumulator(n: int) -> Term:
    return load("c", f32, ramp(var("c"), 1, n))


def widened(name: str, at: Term) -> Term:
    return cast(f32, load(name, bf16, at))


def plain(n: int, k: int, b: Term) -> Term:
    return plus(accumulator(n), total(n, times(widened("a", row_of_a(n, k)), widened("b", b))))


def turned_round(n: int, k: int, b: Term) -> Term:
    return plus(total(n, times(widened("b", b), widened("a", row_of_a(n, k)))), accumulator(n))


def broadcast_value(n: int, k: int, b: Term) -> Term:
    left = broadcast(widened("a", ramp(var("a"), 1, k)), n)
    return plus(accumulator(n), total(n, times(left, widened("b", b))))


def broadcast_load(n: int, k: int, b: Term) -> Term:
    left = cast(f32, broadcast(load("a", bf16, ramp(var("a"), 1, k)), n))
    return plus(accumulator(n), total(n, times(left, widened("b", b))))


def without_c(n: int, k: int, b: Term) -> Term:
    return total(n, times(widened("a", row_of_a(n, k)), widened("b", b)))


def bias(n: int, k: int, b: Term) -> Term:
    """C is a bias, the same in all rows of a tile."""
    row = broadcast(load("bias", f32, ramp(var("c"), 1, 1)), n)
    return plus(row, total(n, times(widened("a", row_of_a(n, k)), widened("b", b))))


FORMS: list[Callable[[int, int, Term], Term]] = [plain, turned_round, broadcast_value, broadcast_load, without_c, bias]
LAYOUTS: list[Callable[[int, int], Term]] = [standard, transposed, packed, packed_nest]


def memory(rng: Random) -> Memory:
    generator = np.random.default_rng(rng.randrange(1 << 30))
    symbols = {name: rng.randint(0, 60) for name in ("a", "b", "c", "s", "x")}
    names = ("a", "b", "c", "bias", "u8", "i8")
    return Memory(symbols, {name: generator.integers(0 if name == "u8" else -4, 5, 997) for name in names})


def products(term: Term) -> int:
    """The products that instructions compute."""
    own = term.data[0].work if term.op == "apply" else 0
    inside = sum(products(a) for a in term.args)
    return int(own + inside * (term.data[1] if term.op == "each" else 1))


def check(statement: Term, found: Term) -> None:
    rng = Random(5)
    for _ in range(3):
        where = memory(rng)
        assert np.array_equal(value_of(statement, where), value_of(found, where))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("n", "k"), [(16, 2), (16, 6), (40, 4)])
def test_a_product_of_bf16_is_found(
    form: Callable[[int, int, Term], Term], layout: Callable[[int, int], Term], n: int, k: int
) -> None:
    statement = form(n, k, layout(n, k))
    choice = choose(statement, TARGET, TABLE)
    assert DOT in choice.instructions
    assert products(choice.term) == n * k
    assert choice.useful == 1.0
    check(statement, choice.term)


@pytest.mark.parametrize("layout", [standard, packed])
def test_pairs_written_one_after_the_other_are_joined(layout: Callable[[int, int], Term]) -> None:
    """c + a[0]·b[0] + a[1]·b[1], as an unrolled loop over k writes it."""
    n = 16
    statement = accumulator(n)
    for step in range(2):
        left = broadcast(widened("a", plus(var("a"), const(step))), n)
        at = plus(ramp(var("b"), 1, n), broadcast(times(const(step), var("s")), n))
        if layout is packed:
            at = ramp(plus(var("b"), const(step)), 2, n)
        statement = plus(statement, times(left, widened("b", at)))
    choice = choose(statement, TARGET, TABLE)
    assert choice.instructions == (DOT,)
    assert choice.cost.permutations == (1 if layout is standard else 0)
    check(statement, choice.term)


def test_a_packed_b_costs_less_than_one_by_rows() -> None:
    costs = [choose(plain(16, 2, at(16, 2)), TARGET, TABLE).cost for at in (packed, standard, transposed)]
    assert [(c.instructions, c.loads, c.permutations) for c in costs] == [(1, 3, 0), (1, 4, 1), (1, 18, 0)]


def bytes_product(n: int, k: int, a: DType, b: DType) -> Term:
    left = cast(i32, load("u8" if a == u8 else "i8", a, row_of_a(n, k)))
    right = cast(i32, load("i8", b, packed(n, k, 4)))
    return plus(load("c", i32, ramp(var("c"), 1, n)), total(n, times(left, right)))


def test_a_product_of_bytes_is_found() -> None:
    statement = bytes_product(8, 8, u8, i8)
    choice = choose(statement, TARGET, TABLE)
    assert choice.instructions == (DP4,)
    assert products(choice.term) == 64
    check(statement, choice.term)


def test_signed_bytes_are_not_taken_for_unsigned() -> None:
    choice = choose(bytes_product(8, 8, i8, i8), TARGET, TABLE)
    assert {i.name for i in choice.instructions} == {"multiply_add_i32x8"}  # of bytes widened to i32


def test_a_tile_of_rows_is_found_by_the_owners_of_its_operands() -> None:
    """turned_bf16 holds c by columns, so that two permutations put it right."""
    c = load("c", f32, ramp(var("c"), 1, 6))
    a = ramp(broadcast(ramp(var("a"), 1, 2), 3), var("s"), 2)
    b = broadcast(ramp(ramp(var("b"), var("x"), 2), 1, 3), 2)
    statement = plus(c, total(6, times(widened("a", a), widened("b", b))))
    choice = choose(statement, TARGET, (TURNED,))
    assert choice.instructions == (TURNED,)
    check(statement, choice.term)


def test_f32_is_never_rounded_for_a_unit_of_bf16() -> None:
    a, b = load("a", f32, row_of_a(16, 2)), load("b", f32, standard(16, 2))
    statement = plus(accumulator(16), total(16, times(a, b)))
    assert all(e.spec.a == f32 for e in choose(statement, TARGET, TABLE).instructions if isinstance(e.spec, MatMulSpec))
    with pytest.raises(LoweringError, match="a is f32, and dot_bf16x16 takes bf16"):
        demand(statement, DOT, TARGET, TABLE)


def test_an_odd_number_of_terms_is_refused_or_computed_without_the_unit() -> None:
    statement = plain(16, 3, standard(16, 3))
    choice = choose(statement, TARGET, TABLE)
    assert DOT not in choice.instructions
    check(statement, choice.term)
    with pytest.raises(LoweringError, match="its sums have 3 products, not a multiple of 2"):
        demand(statement, DOT, TARGET, TABLE)


def test_a_refusal_names_the_operand_and_its_digits() -> None:
    a = ramp(ramp(var("a"), 1, 2), var("s"), 16)  # another row of A in each column
    statement = plus(accumulator(16), total(16, times(widened("a", a), widened("b", packed(16, 2)))))
    with pytest.raises(LoweringError) as error:
        demand(statement, DOT, TARGET, TABLE)
    assert str(error.value) == (
        "taskmap: dot_bf16x16 cannot compute the statement\n"
        "  a has digits (a; 2:1, 16:s), which differ from column to column."
    )


def test_a_demand_that_can_be_met() -> None:
    choice = demand(plain(32, 4, packed(32, 4)), DOT, TARGET, TABLE)
    assert choice.instructions == (DOT,)


def test_a_unit_that_the_target_lacks_is_refused() -> None:
    generic = cpu_target("generic", 1)
    fma = next(e for e in CPU_INSTRUCTIONS if e.name == "fma_f32x16")
    with pytest.raises(LoweringError, match="does not have fma_f32x16"):
        demand(plain(16, 2, packed(16, 2)), fma, generic, TABLE)


def test_a_statement_without_products_is_refused() -> None:
    with pytest.raises(LoweringError, match="it contains no sum of products"):
        demand(accumulator(16), DOT, TARGET, TABLE)


def test_an_entry_brings_its_lowering() -> None:
    """An instruction that is added to the table is found, without a rule for it."""
    statement = bytes_product(16, 4, i8, i8)
    assert {i.name for i in choose(statement, TARGET, TABLE).instructions} == {"multiply_add_i32x16"}
    added = pairs(i8, i8, i32, 16, 4)
    assert choose(statement, TARGET, (*TABLE, added)).instructions == (added,)


def test_a_statement_is_searched_once() -> None:
    first = choose(plain(16, 4, packed(16, 4)), TARGET, TABLE)
    assert choose(plain(16, 4, packed(16, 4)), TARGET, TABLE) is first


def test_the_record_of_a_choice() -> None:
    choice = choose(plain(16, 2, standard(16, 2)), TARGET, TABLE)
    assert str(choice).startswith("dot_bf16x16: 6 issued; rules: contiguous-runs, by dot_bf16x16; ")
    assert "100% of products useful" in str(choice)
    second = choice.second()
    assert second is not None
    assert DOT not in second.instructions
    assert second.cost > choice.cost
    assert choose(accumulator(4), TARGET, TABLE).second() is None


def test_limits_are_an_error() -> None:
    with pytest.raises(SelectionLimitError, match="nodes by rule"):
        choose(plain(16, 8, standard(16, 8)), TARGET, TABLE, Limits(nodes=60))


def test_the_instructions_of_a_term_are_named_once() -> None:
    choice = choose(plain(40, 4, packed(40, 4)), TARGET, TABLE)
    used: tuple[Instruction, ...] = instructions_of(choice.term)
    assert len(set(used)) == len(used)
