"""LSTM, GRU and RNN: every variant against a plain loop in float64, as one kernel for any length and batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import OnnxModel, load_model
from taskmap.options import Options
from tests.onnx.recurrences import BOTH, VARIANTS, Array, Case


def agree(got: Sequence[Array], case: Case) -> None:
    """Asserts that the results equal those of the plain loop."""
    for have, want in zip(got, case.expected(), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


def kernels(loaded: OnnxModel) -> list[Any]:
    """The graphs made so far."""
    return loaded.program.segments()


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_definition(case: Case) -> None:
    proto, given = case.model()
    agree(load_model(proto, engine=by_definition)(given), case)


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_compiled(case: Case) -> None:
    proto, given = replace(case, hidden=19).model()
    agree(load_model(proto)(given), replace(case, hidden=19))


@pytest.mark.parametrize(("hidden", "batch"), [(1, 5), (16, 3), (131, 1)])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_units_and_sequences(op: str, hidden: int, batch: int) -> None:
    case = Case(op, steps=9, hidden=hidden, batch=batch, attributes=BOTH if hidden == 1 else {})
    proto, given = case.model()
    agree(load_model(proto)(given), case)


def test_one_kernel_for_every_length_and_batch() -> None:
    case = Case("LSTM", steps=4, batch=3, hidden=18, attributes=BOTH)
    proto, given = case.model(symbolic=True)
    loaded = load_model(proto)
    agree(loaded(given), case)
    for steps, batch in ((300, 1), (1, 5), (23, 4), (11, 7)):
        other = replace(case, steps=steps, batch=batch)
        agree(loaded(other.model(symbolic=True)[1]), other)
    assert len(kernels(loaded)) == 1
    assert loaded.host_operators == 0


def test_lengths_of_any_batch() -> None:
    case = Case("GRU", steps=6, batch=2, lengths=(2, 6))
    loaded = load_model(case.model(symbolic=True)[0])
    for other in (case, replace(case, steps=9, batch=5, lengths=(9, 1, 4, 9, 2))):
        agree(loaded(other.model(symbolic=True)[1]), other)
    assert len(kernels(loaded)) == 1


def test_more_steps_add_no_nodes() -> None:
    counts = []
    for steps in (5, 2000):
        proto, given = Case("LSTM", steps=steps, batch=1, attributes=BOTH).model()
        loaded = load_model(proto)
        loaded(given)
        counts.append([len(s.graph.nodes()) for s in kernels(loaded)])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("case", [VARIANTS[2], VARIANTS[6], replace(VARIANTS[8], hidden=600, batch=1)], ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_gpu(case: Case, symbolic: bool) -> None:
    proto, given = case.model(symbolic)
    agree(load_model(proto, Options(target="cuda-sim"))(given), case)
