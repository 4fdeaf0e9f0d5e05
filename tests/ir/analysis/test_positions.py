"""Row-major numbers and positions are inverses of each other, for known and for symbolic sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.ir.analysis.cost import known_size
from taskmap.ir.analysis.positions import flatten, unravel
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.printer import print_dim


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_unravel_is_the_inverse_of_flatten(sizes: list[int], data: st.DataObject) -> None:
    symbols = [Var(f"n{i}") for i in range(len(sizes))]
    symbolic = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    shape: list[Dim] = [v if free else n for v, n, free in zip(symbols, sizes, symbolic, strict=True)]
    flat = Var("flat")
    number = data.draw(st.integers(0, math.prod(sizes) - 1))
    values = {flat: number, **dict(zip(symbols, sizes, strict=True))}
    position = unravel(flat, shape)
    assert [known_size(i, values) for i in position] == list(np.unravel_index(number, sizes))
    assert known_size(flatten(list(zip(position, shape, strict=True))), values) == number


@pytest.mark.parametrize(
    ("shape", "indices"),
    [
        ((1, 6, 1, 4), ["0", "flat // 4", "0", "flat % 4"]),
        ((Var("n"), 4), ["flat // 4", "flat % 4"]),
        ((1, 1), ["0", "0"]),
        ((), []),
    ],
)
def test_no_index_is_reduced_without_need(shape: tuple[Dim, ...], indices: list[str]) -> None:
    assert [print_dim(i) for i in unravel(Var("flat"), shape)] == indices


def test_indices_are_simplified() -> None:
    seen: list[Expr] = []

    def simplify(e: Expr) -> Expr:
        seen.append(e)
        return e

    assert list(unravel(Var("flat"), (2, 3), simplify)) == seen
