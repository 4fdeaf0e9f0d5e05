"""Minimal filtering is exact over the rationals, and its matrices are exact in f32."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from taskmap.ir.interp.definitions import evaluate
from taskmap.ir.task import compute, formal
from taskmap.ir.types import f32, f64
from taskmap.ir.winograd import (
    FORMS,
    TAPS,
    Matrix,
    WinogradForm,
    taps_transformed,
    weight_again,
    weight_shape,
    winograd,
)

Rows = Sequence[Sequence[Fraction]]
OTHERS = [winograd([Fraction(1), Fraction(2)]), winograd([Fraction(1), Fraction(2), Fraction(1, 2)])]
EVERY = [*FORMS.values(), *OTHERS]


def rationals(chance: random.Random, rows: int, columns: int) -> list[list[Fraction]]:
    return [[Fraction(chance.randint(-99, 99), chance.randint(1, 9)) for _ in range(columns)] for _ in range(rows)]


def product(a: Rows, b: Rows) -> list[list[Fraction]]:
    return [[sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)]
            for row in a]  # fmt: skip


def both_sides(matrix: Matrix, x: Rows) -> list[list[Fraction]]:
    return product(product(matrix, x), list(zip(*matrix, strict=True)))


@pytest.mark.parametrize("form", EVERY, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_filtering_is_exact_over_the_rationals(form: WinogradForm, seed: int) -> None:
    chance = random.Random(seed)
    taps, image = rationals(chance, TAPS, TAPS), rationals(chance, form.inputs, form.inputs)
    transformed, inputs = both_sides(form.of_taps, taps), both_sides(form.of_inputs, image)
    multiplied = [[x * y for x, y in zip(*rows, strict=True)] for rows in zip(transformed, inputs, strict=True)]
    places = range(form.outputs)
    expected = [
        [sum(taps[ky][kx] * image[y + ky][x + kx] for ky in range(TAPS) for kx in range(TAPS)) for x in places]
        for y in places
    ]
    assert both_sides(form.to_outputs, multiplied) == expected


@pytest.mark.parametrize("form", EVERY, ids=str)
def test_taps_are_recovered(form: WinogradForm) -> None:
    taps = rationals(random.Random(0), TAPS, 1)
    transformed = product(form.of_taps, taps)
    again = [[sum((factor * transformed[at][0] for at, factor in pairs), Fraction(0))] for pairs in form.taps_again]
    assert again == taps


@pytest.mark.parametrize("form", FORMS.values(), ids=str)
def test_the_matrices_that_kernels_apply_are_exact_and_near_one(form: WinogradForm) -> None:
    for matrix in (form.of_inputs, form.to_outputs):
        for x in (x for row in matrix for x in row):
            assert Fraction(float(np.float32(float(x)))) == x
            assert abs(x) <= 1


def test_products_of_a_tile() -> None:
    """F(2×2) needs 4 products for each output, F(4×4) 2.25, a direct convolution 9."""
    assert [form.inputs**2 / form.outputs**2 for form in FORMS.values()] == [4, 2.25]


@pytest.mark.parametrize("form", FORMS.values(), ids=str)
def test_definitions_of_transformed_weights_and_back(form: WinogradForm) -> None:
    out_channels, channels, width = 5, 3, 4
    w = np.random.default_rng(0).standard_normal((out_channels, channels, TAPS, TAPS))
    taps = formal("w", w.shape, f64)
    there = compute(
        "there", [taps], (out_channels, channels, form.inputs, form.inputs),
        lambda o, c, i, j: taps_transformed(
            form, i, j, [[taps[o, c, ky, kx] for kx in range(TAPS)] for ky in range(TAPS)]
        ),
    )  # fmt: skip
    made = evaluate(there, [w], {})
    matrix = np.array([[float(x) for x in row] for row in form.of_taps])
    np.testing.assert_allclose(made, np.einsum("ia,ocab,jb->ocij", matrix, w, matrix), rtol=1e-12, atol=1e-12)

    shape = weight_shape(form, channels, out_channels, width)
    packed = np.zeros(shape, np.float32)
    for o in range(out_channels):
        packed[o // width, :, :, :, o % width] = made[o].transpose(1, 2, 0)
    source = formal("transformed", shape, f32)
    back = compute(
        "back", [source], w.shape, lambda o, c, ky, kx: weight_again(form, source, o, c, [ky, kx]), f32
    )  # fmt: skip
    np.testing.assert_allclose(evaluate(back, [packed], {}), w, rtol=1e-5, atol=1e-5)
