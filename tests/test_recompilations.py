"""No flow makes this backend compile more often than a backend that puts no condition on its graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.recompilations import Count, count
from benchmarks.support.flows import FLOWS

CI = (
    "batch sizes from 1 on",
    "generation, growing cache",
    "a slice of changing length",
    "a float that changes",
    "sizes as values",
)
"""Cheap ones of several kinds."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", [n if n in CI else pytest.param(n, marks=pytest.mark.long) for n in FLOWS])
def test_as_often_as_the_flow_asks_for(name: str) -> None:
    ours, least = count(FLOWS[name], "taskmap"), count(FLOWS[name], "aot_eager")
    assert (ours.wrong, least.wrong) == ("", "")
    assert ours.captured <= least.captured
    assert ours.compiled <= least.compiled


def test_a_wrong_result_is_seen() -> None:
    results = iter((1.0, 2.0))
    found = count(lambda engine: [engine(torch.relu)(torch.full((2,), next(results)))], "aot_eager")
    assert found.wrong.startswith("wrong")
    assert str(found) == found.wrong
    assert str(Count(2, 4)) == "2 / 4"
