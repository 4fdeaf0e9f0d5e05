"""Comparisons of consecutive indices: 32 bits per lane, and the results of 64 bits for any bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.ir.construct import compare, const, index, select
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Expr, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32, i64
from taskmap.schedules import schedule
from tests.schedules.running import Case, isas, run_cases, target

OPERATORS = ("lt", "le", "gt", "ge", "eq", "ne")
FAR = 1 << 40


def chosen(op: str, bound: Expr, mirrored: bool, inputs: tuple[Buffer, ...], dims: tuple[Var, ...]) -> Task:
    """1 where the column compares with the bound, else 0: [40]."""
    out, j = Buffer("out", f32, (40,)), Var("j")
    truth = compare(op, bound, j) if mirrored else compare(op, j, bound)
    value = select(truth, const(1.0, f32), const(0.0, f32))
    return Task("chosen", inputs, (Stage(out, (j,), value, "where"),), (out,), dims)


@pytest.mark.parametrize("mirrored", [False, True])
def test_every_comparison_with_any_size(mirrored: bool) -> None:
    n = Var("n")
    cases, expected = [], []
    for op, isa in product(OPERATORS, isas()):
        task = chosen(op, index(n) * 3 - 20, mirrored, (), (n,))
        for size in (1, 6, 7, 12, 20, FAR):
            cases.append(Case(task, [], {n: size}, isa=isa))
            bounds, columns = np.full(40, 3 * size - 20), np.arange(40)
            function = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
                        "eq": np.equal, "ne": np.not_equal}[op]  # fmt: skip
            expected.append(function(bounds, columns) if mirrored else function(columns, bounds))
    for (result,), truth in zip(run_cases(cases), expected, strict=True):
        assert (result == truth).all()


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_masks_of_consecutive_indices_are_made_in_32_bits(isa: str) -> None:
    """The registers of a mask are those of the f32 that it selects, not twice as many."""
    n = Var("n")
    machine = target(isa)
    text = generate(lower(schedule(chosen("lt", index(n), False, (), (n,)), machine), target=machine),
                    machine.vector_bytes).text  # fmt: skip
    lanes = machine.lanes(4)
    assert f"m32x{lanes}" in text
    assert "i64x" not in text.replace("i64x1(", "")
    assert "m64x" not in text


def test_a_bound_from_memory_keeps_its_64_bits() -> None:
    """Its difference to an index may overflow."""
    at = Buffer("at", i64, (1,))
    task = chosen("lt", at[index(0)], False, (at,), ())
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    cases = [Case(task, [np.array([x])], isa=isa) for isa in isas() for x in (least, most, 9)]
    for case, (result,) in zip(cases, run_cases(cases), strict=True):
        assert (result == (np.arange(40) < case.arrays[0])).all()
