"""Layout digits equal the addresses lane by lane."""

from __future__ import annotations

from random import Random

import numpy as np

from taskmap.ir.interp.terms import Memory, value_of
from taskmap.ir.select.address import Address, address, from_rows, number, symbol
from taskmap.ir.select.egraph import EGraph
from taskmap.ir.select.terms import Term, binary, broadcast, const, ramp, var

FACTORS = (2, 3, 4)


def random_index(rng: Random, lanes: int, depth: int) -> Term:
    """A random nest of ramps, broadcasts and arithmetic."""
    if lanes == 1 or depth == 0:
        x: Term = rng.choice([const(rng.choice([0, 4, 8, 32])), var("x")])
        return x if lanes == 1 else broadcast(x, lanes)
    inner = rng.choice([d for d in range(1, lanes) if lanes % d == 0])
    kind = rng.choice(["ramp", "ramp", "broadcast", "add", "mul", "div", "mod"])
    if kind == "ramp":
        stride = rng.choice([const(rng.choice([0, 1, 2, 8, 16])), var("s")])
        return ramp(random_index(rng, inner, depth - 1), stride, lanes // inner)
    if kind == "broadcast":
        return broadcast(random_index(rng, inner, depth - 1), lanes // inner)
    if kind == "add":
        return Term("add", (), (random_index(rng, lanes, depth - 1), random_index(rng, lanes, depth - 1)))
    return binary(kind, random_index(rng, lanes, depth - 1), rng.choice([2, 4]))


def test_digits_equal_the_addresses() -> None:
    rng = Random(7)
    known = 0
    for _ in range(3000):
        term = random_index(rng, rng.choice([4, 8, 12, 16, 24, 64]), 4)
        g = EGraph()
        layout = g.facts(g.insert(term)).layout
        if layout is None:
            continue
        known += 1
        symbols = {"x": 24, "s": rng.randint(0, 50)}
        assert layout.values(symbols) == value_of(term, Memory(symbols, {})).tolist()
        assert layout.lanes == term.type[1]
        assert from_rows(layout.rows()) == layout
    assert known > 1500  # the others divide a symbol


def test_equal_addresses_have_one_form() -> None:
    split = ramp(ramp(var("x"), 1, 4), 4, 4)
    pairs = Term("add", (), (broadcast(ramp(0, 1, 2), 8), ramp(broadcast(var("x"), 2), 2, 8)))
    whole = address(symbol("x"), [(16, number(1))])
    for term in (split, pairs, ramp(var("x"), 1, 16)):
        g = EGraph()
        assert g.facts(g.insert(term)).layout == whole


def test_parts_are_slices() -> None:
    rng = Random(1)
    found = 0
    for _ in range(400):
        whole = address(number(3), [(rng.choice(FACTORS), number(rng.randint(0, 9))) for _ in range(rng.randint(0, 3))])
        width = rng.randint(1, whole.lanes)
        start = rng.randint(0, whole.lanes - width)
        part = whole.part(start, width)
        values = whole.values({})[start : start + width]
        assert part is None or part.values({}) == values
        count = whole.lanes // width
        tiles = whole.part(0, width, count, "t")
        if tiles is not None:
            found += 1
            for t in range(count):
                assert tiles.values({"t": t}) == whole.values({})[t * width : (t + 1) * width]
        assert part is not None or from_rows(whole.rows()[start : start + width]) is None
    assert found > 200


def test_divisions_off_digit_boundaries_have_no_digits() -> None:
    assert address(number(1), [(4, number(1))]).divided(2) is None
    assert address(symbol("x"), [(4, number(1))]).divided(2) is None
    whole = address(number(4), [(8, number(1))]).divided(4)
    assert whole == (address(number(1), [(4, ()), (2, number(1))]), address((), [(4, number(1)), (2, ())]))


def test_a_layout_reads_as_its_digits() -> None:
    layout = address(symbol("b"), [(2, symbol("s")), (16, number(1))])
    assert str(layout) == "(b; 2:s, 16:1)"
    assert np.array_equal(Address(number(2)).values({}), [2])
