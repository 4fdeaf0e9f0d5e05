"""Every GPU template at the corners of its space of configurations: compiled by NVRTC for sm_80 and sm_90a, and run in
the simulator against float64, with copies landing late and early, and threads in several orders.

Of all kernels those that covering.py chooses, in two of the four ways unless --long is given: TASKMAP_CORNERS=all, or
python -m benchmarks.cuda_corners, runs all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cuda_corners
from benchmarks.cuda_corners import Proved, finished, main, proved, read, reported
from benchmarks.support.conditions import Conditions
from taskmap.ir.errors import CompilerFailedError
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from tests.cuda_proof.covering import Candidate, candidates, covered, covering
from tests.cuda_proof.proving import ARCHITECTURES, RUNS, SOME_RUNS, Corner, Proof, corners
from tests.cuda_proof.subjects import Subject, corners_of, subjects

ALL = os.environ.get("TASKMAP_CORNERS") == "all"
EVERY = candidates(subjects(), ARCHITECTURES)


@pytest.fixture(scope="module")
def proof(request: pytest.FixtureRequest) -> Iterator[Proof]:
    made = Proof(runs=RUNS if request.config.getoption("--long") else SOME_RUNS)
    yield made
    made.close()


def chosen() -> dict[Subject, list[str]]:
    """Subjects with the selected configurations."""
    found: dict[Subject, list[str]] = {}
    for c in EVERY if ALL else covering(EVERY):
        found.setdefault(c.subject, []).append(c.config)
    return found


@pytest.mark.parametrize(("subject", "configs"), [pytest.param(s, c, id=str(s)) for s, c in chosen().items()])
def test_corner(subject: Subject, configs: list[str], proof: Proof) -> None:
    every = corners(subject, configs=configs)
    assert {c.config for c in every} == set(configs)
    proof.prove(every)
    for c in every:
        assert not c.failures, f"{c}\n" + "\n".join(c.failures)
        assert not c.spilled, f"{c}: {c.spilled}"
        assert set(c.binaries) == set(c.sources)
        assert c.runs


def test_everything_is_covered() -> None:
    every, some = covered(EVERY), covering(EVERY)
    assert covered(some) == every
    assert len(some) < len(EVERY) / 4
    assert {c.subject for c in some} == {c.subject for c in EVERY}
    for part in (
        ("corner", "product", "wgmma, most stages", "bf16"), ("corner", "convolution", "sm_90a, default", "f16"),
        ("corner", "product", "mma, least tile", "u8 i8"), ("corner", "product", "mma, most stages", "tf32"),
        ("corner", "attention", "attention by threads, most keys", "f32"),
        ("corner", "rows", "rows, 1 threads hold them", "f16"), ("operator", "transpose", "67x71", "i8"),
        ("operator", "convolution", "3x3 depthwise", "f16"),
    ):  # fmt: skip
        assert part in every
    assert {template for _, template, _, _ in every} == {s.template for s in subjects()}


def test_a_covering_has_what_only_one_candidate_has() -> None:
    subject = next(subjects())
    parts = [("corner", str(n)) for n in range(5)]
    every = [
        Candidate(subject, str(n), frozenset(p))
        for n, p in enumerate([parts[:2], parts[1:3], parts[:3], parts[3:4], parts[3:]])
    ]
    assert [c.config for c in covering(every)] == ["2", "4"]
    assert covering([]) == []


def one(template: str, old: str, new: str) -> Corner:
    """The first corner of a template, with a replacement in its text."""
    subject = next(s for s in subjects() if s.template == template)
    corner = corners(subject, ("sm_80",), {"default"})[0]
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
    found = corners_of(space, "threads")
    assert next(iter(found)) == space[0]
    assert len(found) < len(space)
    named = frozenset[str]().union(*found.values())
    assert named == {
        f"threads, {end} {axis}"
        for end in ("least", "most")
        for axis in ("tile", "block_m", "block_k", "warp_m", "stages")
    }
    assert all("threads, least stages" in ends for c, ends in found.items() if c.stages == 2)
    assert not any("threads, least stages" in ends for c, ends in found.items() if c.stages == 3)
    assert corners_of(space[:1], "threads") == {space[0]: {"threads"}}
    assert corners_of([]) == {}


def record(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "cuda_corners.json").read_text())
    return found


def test_parts_of_a_run_are_joined(tmp_path: Path) -> None:
    one = Proved("rows", "rows a", "1", 3, {"sm_80": 2, "sm_90a": 3}, 12, 0.25, ["spilled"], [], 7.0)
    other = Proved("rows", "rows b", "2", 4, {"sm_80": 4, "sm_90a": 4}, 16, 0.5, [], ["wrong"], 8.0)
    clean = Proved("join", "join a", "3", 1, {"sm_80": 1, "sm_90a": 1}, 4, 0.1, [], [], 1.0)
    conditions = Conditions.now(0, 1, 1)
    for name, found in (("a", [one]), ("b", [other, clean])):
        assert finished(reported(found, 3, conditions), found, tmp_path / name) == 1
    assert finished(reported([clean], 1, conditions), [clean], tmp_path / "c") == 0
    files = [str(tmp_path / name / "cuda_corners.json") for name in "ab"]
    assert main(["--merge", *files, "--out", str(tmp_path)]) == 1
    again = read(tmp_path / "cuda_corners.json")
    assert list(again.values()) == [one, other, clean]
    rows = record(tmp_path)["rows"]
    assert rows[0] == ["rows", "2", "7", "6", "7", "1", "28", "0.50", "1", "15"]
    assert "subjects were left out" in record(tmp_path)["notes"][0]


def test_what_has_not_changed_is_not_proved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject whose kernels are the same keeps its results; one that changed or failed is proved; what a run does not
    get to stays in the file."""
    some = [s for s in subjects() if s.template in ("gather", "join")][:3]
    monkeypatch.setattr(cuda_corners, "subjects", lambda: iter(some))
    how = ["--out", str(tmp_path), "--resume", "--threads", "1"]
    assert main(how) == 0
    first = read(tmp_path / "cuda_corners.json")
    assert [p.subject for p in first.values()] == list(map(str, some))
    assert all(p.runs == 4 * p.kernels > 0 for p in first.values())
    assert main([*how, "--seconds", "-1"]) == 0  # nothing is begun
    assert read(tmp_path / "cuda_corners.json") == first
    assert "3 of 3 subjects were left out" in record(tmp_path)["notes"][0]
    unproved = Proof(1)
    monkeypatch.setattr(unproved, "prove", lambda every: pytest.fail("proved again"))
    assert [proved(s, unproved, first[str(s)]) for s in some] == list(first.values())
    failed = replace(first[str(some[0])], failures=["wrong"])
    for earlier in (failed, replace(first[str(some[0])], digest="other")):
        again = proved(some[0], Proof(1), earlier)
        assert again.clean
        assert again.digest == first[str(some[0])].digest
    changed = replace(some[0], limits={**some[0].limits, "f16": 1e-9})
    assert cuda_corners.digest(changed, corners(some[0])) != first[str(some[0])].digest
