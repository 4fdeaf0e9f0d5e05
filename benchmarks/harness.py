"""Interleaved measurement: in every round each engine gets one window, in an order drawn anew, so that a slow phase of
the machine meets all of them alike; what is compared is the ratio within a round.

The spread of per-round ratios is reported beside their median: a claim stands when the range does not straddle 1.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from benchmarks.conditions import Probe, StealMeter

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Window:
    """One engine's turn in one round.

    Attributes:
        name: the engine or case.
        round: counted from 0.
        seconds: median duration of one call.
        fastest: shortest duration of one call, in seconds.
        calls: calls in this window.
        probe: GFLOP/s of the probe just before and just after; the lower of the two.
        steal: fraction of processor time that was stolen, 0 to 1.
    """

    name: str
    round: int
    seconds: float
    fastest: float
    calls: int
    probe: float
    steal: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of `n` values."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of at least one value; a `ValueError` for none."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("no rounds to summarise: every one was rejected, or none was run")
        return cls(statistics.median(ordered), ordered[0], ordered[-1], len(ordered))

    def text(self, digits: int = 2, unit: str = "", scale: float = 1.0) -> str:
        """As in '12.3ms [11.9-14.0]'."""
        median, low, high = (f"{value * scale:.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{median}{unit}" if self.n == 1 else f"{median}{unit} [{low}-{high}]"


@dataclass(frozen=True, slots=True)
class Measurement:
    """All windows of one interleaved run."""

    windows: tuple[Window, ...]

    def seconds(self, name: str) -> Spread:
        """Duration of one call, over the rounds."""
        return Spread.of(w.seconds for w in self.windows if w.name == name)

    def best(self, name: str) -> float:
        """The shortest call of all rounds, in seconds."""
        return min(w.fastest for w in self.windows if w.name == name)

    def speedup(self, name: str, baseline: str) -> Spread:
        """Baseline's time over `name`'s time, paired by round: above 1 means that `name` is faster."""
        own = {w.round: w.seconds for w in self.windows if w.name == name}
        other = {w.round: w.seconds for w in self.windows if w.name == baseline}
        return Spread.of(other[r] / own[r] for r in own if r in other)

    def accept(self, fraction: float) -> Measurement:
        """Without the windows whose probe fell below `fraction` of the best probe of the run; 0 keeps all."""
        floor = fraction * max((w.probe for w in self.windows), default=0.0)
        return Measurement(tuple(w for w in self.windows if w.probe >= floor))


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log)); a `ValueError` for no values or for one that is not positive."""
    if not values:
        raise ValueError("no values to average")
    return math.exp(sum(math.log(v) for v in values) / len(values))


def measure_window(call: Call, seconds: float, least: int = 3) -> list[float]:
    """Durations of calls, in seconds, until `seconds` have passed and at least `least` calls were made.

    Calls too short for the clock are timed in batches of about 50 microseconds; an entry is then a batch's mean.
    """
    start = time.perf_counter()
    call()
    batch = max(1, int(50e-6 / max(time.perf_counter() - start, 1e-9)))
    durations: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(durations) < least or time.perf_counter() < deadline:
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        durations.append((time.perf_counter() - begin) / batch)
    return durations


def interleave(
    calls: Mapping[str, Call],
    rounds: int,
    seed: int,
    window: float = 0.4,
    pause: float = 0.02,
    label: str = "",
) -> Measurement:
    """Measures every call once a round, in random order.

    Args:
        calls: by name; each is called once beforehand, to warm up.
        rounds: how many windows each gets.
        seed: of the order.
        window: seconds a window lasts at least.
        pause: seconds to wait before a window, so that the previous engine's threads stop spinning.
        label: shown beside the progress bar.
    """
    order = random.Random(seed)
    probe = Probe()
    windows: list[Window] = []
    with torch.no_grad():
        for call in calls.values():
            call()
        with tqdm(total=rounds * len(calls), desc=label, leave=False, disable=None) as bar:
            for number in range(rounds):
                names = list(calls)
                order.shuffle(names)
                for name in names:
                    time.sleep(pause)
                    before, meter = probe.gflops(), StealMeter()
                    durations = measure_window(calls[name], window)
                    steal = meter.fraction()
                    after = probe.gflops()
                    windows.append(
                        Window(
                            name, number, statistics.median(durations), min(durations), len(durations),
                            min(before, after), steal,
                        )
                    )  # fmt: skip
                    bar.update()
    return Measurement(tuple(windows))
