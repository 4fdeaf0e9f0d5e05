"""Estimates of a case by the cost model, or else by the roofline; and rates fitted to measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu.cases import Case
from taskmap.ir.errors import ScheduleError
from taskmap.ir.target import GpuTarget
from taskmap.schedules import Problem, read_problem

RATES = ("f16_rate", "f32_rate", "l2_rate", "memory_bandwidth")
"""The fields of GpuTarget that the cost model of products reads, and that a measurement can correct."""

MODEL, ROOFLINE = "cost model", "roofline"
_STEPS = (1.25, 1.05, 1.01)
_MOST = 4.0  # times as fast or slow as the data say: beyond that a rate explains something else
_KEPT = 1e-4  # what a rate must improve to be changed: one that bounds nothing stays


@dataclass(frozen=True, slots=True)
class Seen:
    """A case with its measured seconds."""

    case: Case
    seconds: float


def problem_of(case: Case) -> Problem | None:
    """The case as the cost model of products sees it; None if it is not a product, or has a single row."""
    if case.product is None:
        return None
    m, n, k, kind = case.product
    try:
        return read_problem("cuda.matmul", f"1x{m}x{n}x{k}", f"{kind},{kind},{kind}", "a=k b=k")
    except ScheduleError:
        return None


def estimate(case: Case, target: GpuTarget) -> tuple[float, str]:
    """Seconds, and their source: the cost model of products for the configuration that it chooses; otherwise the
    roofline, the lower bound for its operations and bytes.
    """
    problem = problem_of(case)
    if problem is not None:
        return problem.cycles(problem.default(target), target) / target.clock, MODEL
    return roofline(case.flops, case.bytes, target.f16_rate, target), ROOFLINE


def roofline(flops: float, moved: float, rate: float, target: GpuTarget) -> float:
    """The least seconds for operations at ``rate`` per clock and multiprocessor, and for bytes of memory ``moved``."""
    return max(flops / (rate * target.clock * target.cores), moved / target.memory_bandwidth)


@dataclass(frozen=True, slots=True)
class Fit:
    """Rates before and after. error: the typical factor between estimate and measurement. changes: for cases whose
    default would be another one, both configurations.
    """

    target: GpuTarget
    fitted: GpuTarget
    error_before: float
    error_after: float
    cases: int
    changes: Mapping[str, tuple[str, str]]

    def lines(self) -> list[str]:
        """The fit as text."""
        found = [f"the cost model against {self.cases} measured cases: typically off by {self.error_before:.2f}x, with "
                 f"fitted rates by {self.error_after:.2f}x"]  # fmt: skip
        for rate in RATES:
            old, new = getattr(self.target, rate), getattr(self.fitted, rate)
            found.append(f"  {rate:18}{old:>16.4g} -> {new:.4g}" + ("" if old != new else "  (nothing says otherwise)"))
        found += [f"  {name}: {old}  would become  {new}" for name, (old, new) in self.changes.items()]
        return found if self.changes else [*found, "  no default would change"]


def refit(seen: Sequence[Seen], target: GpuTarget) -> Fit | None:
    """The rates with the least sum of logarithms of measured over estimated, regardless of sign, found one after the
    other by steps: a single kernel that is slow for its own reasons changes none. None if nothing useful was measured.

    Of cases without a cost model, only memory-bound ones count.
    """
    products = [(s, p) for s in seen if (p := problem_of(s.case)) is not None]
    streams = [s for s in seen if s.case.copy]
    if not products and not streams:
        return None
    chosen = [(s, p, p.default(target)) for s, p in products]  # what ran

    def errors(t: GpuTarget) -> Iterable[float]:
        for s, p, config in chosen:
            yield math.log(s.seconds * t.clock / p.cycles(config, t))
        for s in streams:
            yield math.log(s.seconds * t.memory_bandwidth / s.case.bytes)

    def loss(t: GpuTarget) -> float:
        return math.fsum(abs(e) for e in errors(t))

    fitted, best = target, loss(target)
    for step in _STEPS:
        moved = True
        while moved:
            moved = False
            for rate in RATES:
                for factor in (step, 1 / step):
                    other = _scaled(fitted, target, rate, factor)
                    if other is not None and (now := loss(other)) < best - _KEPT:
                        fitted, best, moved = other, now, True
    changes = {
        s.case.name: (str(config), str(new)) for s, p, config in chosen if str(new := p.default(fitted)) != str(config)
    }
    return Fit(target, fitted, _typical(errors(target)), _typical(errors(fitted)), len(chosen) + len(streams), changes)


def _scaled(now: GpuTarget, first: GpuTarget, rate: str, factor: float) -> GpuTarget | None:
    value = getattr(now, rate) * factor
    if not 1 / _MOST <= value / getattr(first, rate) <= _MOST:
        return None
    return replace(now, **{rate: value})


def _typical(errors: Iterable[float]) -> float:
    return math.exp(statistics.median(abs(e) for e in errors))
