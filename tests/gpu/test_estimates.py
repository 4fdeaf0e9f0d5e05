"""Estimates of `make gpu`'s cases, and the fit of the cost model's rates to measurements with known rates."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.gpu import refit as command
from benchmarks.gpu.cases import Case
from benchmarks.gpu.estimates import MODEL, RATES, ROOFLINE, Seen, estimate, problem_of, refit
from benchmarks.gpu.sections import SECTIONS
from taskmap.ir.target import GpuTarget, gpu_named
from taskmap.schedules import Config, Problem

H200 = gpu_named("H200")
SOME = {"f16 8192", "f16 2039", "f16 8192x8192x1024", "f16 16x4096x4096", "f32 2048"}


@cache
def cases() -> list[Case]:
    return [case for section in SECTIONS.values() for case in section()]


@cache
def default(name: str) -> tuple[Problem, Config] | None:
    """A matrix product as the cost model sees it, and its configuration."""
    problem = problem_of(next(case for case in cases() if case.name == name and case.product))
    return None if problem is None else (problem, problem.default(H200))


def seconds(case: Case, truth: GpuTarget) -> float:
    """The seconds on a GPU with these rates, for the configuration chosen for an H200."""
    found = default(case.name) if case.product else None
    if found is not None:
        return found[0].cycles(found[1], truth) / truth.clock
    return case.bytes / truth.memory_bandwidth


def seen(truth: GpuTarget) -> list[Seen]:
    """Some of the cases, with measured times."""
    return [Seen(case, seconds(case, truth)) for case in cases() if case.copy or (case.name in SOME and case.product)]


def test_every_case_has_an_estimate() -> None:
    found = {case.name: estimate(case, H200) for case in cases()}
    assert all(took > 1e-8 for took, _ in found.values())
    assert found["f16 8192"][1] == MODEL
    assert found["f16 8192"][0] == pytest.approx(2 * 8192**3 / 620e12, rel=0.2)
    assert found["f16 1x4096x4096"][1] == ROOFLINE
    assert found["f16 1x4096x4096"][0] == pytest.approx(33.6e6 / 4.8e12, rel=0.01)
    assert found["f16 32 heads, 4096 keys"][0] == pytest.approx(67e6 / 4.8e12, rel=0.01)


def test_rates_are_found_again() -> None:
    truth = replace(H200, f16_rate=2500, l2_rate=40, memory_bandwidth=4_200_000_000_000)
    fit = refit(seen(truth), H200)
    assert fit is not None
    assert fit.error_after < 1.03 < fit.error_before
    for rate in ("f16_rate", "l2_rate", "memory_bandwidth"):
        assert getattr(fit.fitted, rate) == pytest.approx(getattr(truth, rate), rel=0.1), rate
    assert fit.fitted.f32_rate == pytest.approx(H200.f32_rate, rel=0.05)


def test_one_slow_kernel_moves_no_rate() -> None:
    slow = [replace(s, seconds=8 * s.seconds) if s.case.name == "f16 2039" else s for s in seen(H200)]
    fit = refit(slow, H200)
    assert fit is not None
    for rate in RATES:
        assert getattr(fit.fitted, rate) == pytest.approx(getattr(H200, rate), rel=0.06), rate
    assert fit.lines()[-1] == "  no default would change"


def test_defaults_that_would_change_are_named() -> None:
    """If tensor cores are slower than assumed, large products can take smaller tiles."""
    fit = refit(seen(replace(H200, f16_rate=1500)), H200)
    assert fit is not None
    assert fit.changes
    for name, (old, new) in fit.changes.items():
        assert f"  {name}: {old}  would become  {new}" in fit.lines()


def test_nothing_measured_fits_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refit([], H200) is None
    assert command.main(["--out", str(tmp_path)]) == 1
    assert "nothing was measured" in capsys.readouterr().out


def test_a_run_is_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fit reads a run's files for the GPU that they name; wrong results are ignored."""
    truth = replace(H200, f16_rate=2867)
    conditions = {"device": "NVIDIA H200", "capability": "9.0", "multiprocessors": 132}
    rows = [
        {"name": s.case.name, "right": True, "timings": {"taskmap": {"median": s.seconds}}}
        for s in seen(truth)
        if s.case in list(SECTIONS["matmul"]()) or s.case.product
    ]
    rows.append({"name": "f16 16x4096x4096", "right": False, "timings": {"taskmap": {"median": 1.0}}})
    (tmp_path / "gpu_matmul.json").write_text(json.dumps({"runs": [conditions], "rows": rows[:-2] + rows[-1:]}))
    assert command.main(["--out", str(tmp_path)]) == 0
    assert "f16_rate" in capsys.readouterr().out
    written = json.loads((tmp_path / command.NAME).read_text())
    assert written["rates"]["f16_rate"] == [4096, pytest.approx(0.7 * 4096, rel=0.1)]
