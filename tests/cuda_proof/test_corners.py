"""Every GPU template at the corners of its space of configurations: compiled by NVRTC for sm_80 and sm_90a, and run in
the simulator against float64, copies landing late and early, threads in several orders.

A sample of it: TASKMAP_CORNERS=all, or python -m benchmarks.cuda_corners, takes all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from taskmap.ir.errors import CompilerFailedError
from taskmap.schedules.cuda.matmul_config import MatmulConfig
from tests.cuda_proof.proving import Corner, Proof, corners
from tests.cuda_proof.subjects import Subject, corners_of, subjects

ALL = os.environ.get("TASKMAP_CORNERS") == "all"
EVERY = {"pointwise": 5, "transpose": 4, "rows": 6, "product": 6, "convolution": 6, "attention": 5}
"""Which subjects of a template are in the sample, one in so many; of the others, one in three."""


@pytest.fixture(scope="module")
def proof() -> Iterator[Proof]:
    made = Proof()
    yield made
    made.close()


def chosen() -> Sequence[tuple[int, Subject]]:
    of: dict[str, list[Subject]] = {}
    for s in subjects():
        of.setdefault(s.template, []).append(s)
    steps = {t: 1 if ALL else EVERY.get(t, 3) for t in of}
    return [(n, s) for t, every in of.items() for n, s in enumerate(every) if n % steps[t] == 0]


@pytest.mark.parametrize(("number", "subject"), [pytest.param(n, s, id=str(s)) for n, s in chosen()])
def test_corner(number: int, subject: Subject, proof: Proof) -> None:
    every = corners(subject, sample=None if ALL else number)
    assert every
    proof.prove(every)
    for c in every:
        assert not c.failures, f"{c}\n" + "\n".join(c.failures)
        assert set(c.binaries) == set(c.sources)
        assert c.runs


def one(template: str, old: str, new: str) -> Corner:
    """The first corner of a template, with something else in its text."""
    subject = next(s for s in subjects() if s.template == template)
    corner = corners(subject, ("sm_80",), sample=0)[0]
    (source,) = corner.sources.values()
    assert old in source.text
    corner.sources["sm_80"] = replace(source, text=source.text.replace(old, new))
    return corner


def test_a_wrong_result_is_seen(proof: Proof) -> None:
    corner = one("rows", " / both", " / 1.05f / both")
    proof.prove([corner])
    assert any("of what is allowed" in f for f in corner.failures)


def test_an_access_out_of_bounds_is_seen(proof: Proof) -> None:
    corner = one("transpose", "out0[", "out0[1 + ")
    proof.prove([corner])
    assert any("out of bounds" in f for f in corner.failures)


def test_a_text_that_no_compiler_takes_is_seen(proof: Proof) -> None:
    corner = one(
        "pointwise", "  const int thread", "  __builtin_expect(nvrtc_has_no_such_name, 1);\n  const int thread"
    )
    with pytest.raises(CompilerFailedError):
        proof.prove([corner])


def test_the_corners_of_a_space() -> None:
    space = [MatmulConfig("simt", m, 8, k, m, 8, s) for m in (64, 8, 128) for k in (8, 16) for s in (2, 3)]
    found = corners_of(space)
    assert found[0] == space[0]
    assert {c.block_m for c in found} >= {8, 128}
    assert {c.stages for c in found} == {2, 3}
    assert len(found) < len(space)
    assert corners_of([]) == []
