"""Timing on a GPU: interleaved, over inputs that together exceed the L2 cache, at settled clocks.

Of a kernel, every engine's calls are recorded as one CUDA graph, so that the time of Python and of launching stays out.
A network is called as by a user. In each round all engines take turns in random order; the figure
compared is the ratio within a round. The measuring thread stays on one CPU core.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.conditions import state_while

Call = Callable[[int], object]
"""One call; the argument counts calls, to choose among sets of inputs."""

WINDOW = 0.03
"""Seconds of work in one measured window."""

SETTLE = 0.4
"""Seconds of work before the first round: until then the clocks rise."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: median and quartiles over ``n`` rounds. graphed: it was replayed from a graph."""

    median: float
    low: float
    high: float
    n: int
    graphed: bool

    @classmethod
    def of(cls, seconds: Sequence[float], graphed: bool) -> Timing:
        """The timing of at least two rounds."""
        low, median, high = statistics.quantiles(seconds, n=4)
        return cls(median, low, high, len(seconds), graphed)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Timings by engine, the median over rounds of each engine's speed relative to the baseline's, and the clocks,
    power and temperature of the GPU while it worked.
    """

    timings: Mapping[str, Timing]
    ratios: Mapping[str, float]
    state: Mapping[str, str]


def compare(
    calls: Mapping[str, Call], baseline: str, rounds: int = 9, seed: int = 0, *, graphs: bool = True
) -> Comparison:
    """Measure all calls against each other, once they are warm. ``graphs``: record them.

    Raises ValueError where two engines take the very same times: they run the same code, and one of them is stale.
    """
    draw = random.Random(seed)
    windows = {name: _Window(call, graphs) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with pinned():
        end = time.perf_counter() + SETTLE
        while time.perf_counter() < end:
            for window in windows.values():
                window.measure()
        for _ in range(rounds):
            names = list(calls)
            draw.shuffle(names)
            for name in names:
                seconds[name].append(windows[name].measure())
        state = state_while(windows[baseline].measure)
    _refuse_equal(seconds)
    pairs = {name: [b / s for b, s in zip(seconds[baseline], own, strict=True)] for name, own in seconds.items()}
    return Comparison(
        {name: Timing.of(own, windows[name].graphed) for name, own in seconds.items()},
        {name: statistics.median(pair) for name, pair in pairs.items()},
        state,
    )


def _refuse_equal(seconds: Mapping[str, Sequence[float]]) -> None:
    seen: dict[tuple[float, ...], str] = {}
    for name, own in seconds.items():
        other = seen.setdefault(tuple(own), name)
        if other != name:
            raise ValueError(f"{name} and {other} took the same times in every round: they are the same binary")


@contextmanager
def pinned() -> Iterator[None]:
    """Within the block this thread stays on one core, if the system allows it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class _Window:
    """One engine's calls, recorded if that is possible, and how many make up a window."""

    def __init__(self, call: Call, graphs: bool) -> None:
        self._call = call
        for i in range(3):
            call(i)
        torch.cuda.synchronize()
        each = self._time(lambda: call(0), 3)
        self._count = max(1, min(64, int(WINDOW / 3 / max(each, 1e-6))))
        self._graph = self._record() if graphs else None
        self.graphed = self._graph is not None
        self._repeats = max(1, int(WINDOW / max(self._time(self._run, 2), 1e-6)))

    def measure(self) -> float:
        """Seconds of one call, over one window."""
        return self._time(self._run, self._repeats) / self._count

    def _run(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        for i in range(self._count):
            self._call(i)

    def _record(self) -> torch.cuda.CUDAGraph | None:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(self._count):
                    self._call(i)
        except Exception as error:
            print(f"  not recorded: {str(error).splitlines()[0]}", flush=True)
            torch.cuda.synchronize()
            return None
        return graph

    @staticmethod
    def _time(work: Callable[[], object], times: int) -> float:
        """Seconds of one ``work``, by the GPU's own clock."""
        return seconds_of(work, times, warm=0)


def seconds_of(work: Callable[[], object], times: int = 10, warm: int = 2) -> float:
    """Seconds of one ``work`` among ``times``, by the GPU's own clock."""
    for _ in range(warm):
        work()
    event: Callable[..., Any] = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


class Deadline:
    """A moment after which no new case is begun."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def over(self) -> bool:
        """True if it has passed."""
        return self.left < 0

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self._end - time.perf_counter()
