"""Interleaved measurement: in every round each engine gets one window, in random order, so that a slow phase of
the machine affects all of them alike; the figure compared is the ratio within a round.

The spread of per-round ratios is reported beside their median: a claim holds if the range excludes 1.

On a shared machine a neighbour can slow everything tenfold for seconds. A probe before and after each window
detects this; the
harness waits a while for a quiet moment, repeats windows during which the probe fell, and keeps the evidence.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from benchmarks.support.conditions import Probe, StealMeter

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
    """All windows of one interleaved run, and the best rate that its probe ever saw."""

    windows: tuple[Window, ...]
    best_probe: float = 0.0

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
        """Without the windows whose probe fell below `fraction` of the best; 0 keeps all."""
        floor = fraction * self.best_probe
        return Measurement(tuple(w for w in self.windows if w.probe >= floor), self.best_probe)

    def quiet(self, fraction: float) -> Measurement:
        """`accept(fraction)` if it leaves a round with every name; otherwise all windows."""
        kept = self.accept(fraction)
        names = {w.name for w in self.windows}
        present: dict[int, set[str]] = {}
        for w in kept.windows:
            present.setdefault(w.round, set()).add(w.name)
        return kept if names in present.values() else self


@dataclass(frozen=True, slots=True)
class Protocol:
    """The parameters of an interleaved run.

    Attributes:
        rounds: windows that each engine gets.
        seed: of the order.
        window: seconds that a window lasts at least.
        pause: seconds to wait before a window, so that the previous engine's threads stop spinning.
        accept: a moment is quiet when the probe reaches this fraction of the best so far; 0 takes every moment.
        patience: seconds to spend in all on waiting for quiet moments and on repeating windows that were disturbed.
    """

    rounds: int
    seed: int
    window: float = 0.4
    pause: float = 0.02
    accept: float = 0.0
    patience: float = 0.0

    @classmethod
    def of(cls, arguments: argparse.Namespace, pause: float = 0.02) -> Protocol:
        """From the command line (`add_arguments`)."""
        return cls(arguments.rounds, arguments.seed, arguments.window, pause, arguments.accept, arguments.patience)

    @staticmethod
    def add_arguments(cli: argparse.ArgumentParser, window: float) -> None:
        """Adds --window (with this default), --accept and --patience."""
        cli.add_argument("--window", type=float, default=window, help="seconds of one window")
        cli.add_argument("--accept", type=float, default=0.7, help="part of the best probe that makes a quiet moment")
        cli.add_argument("--patience", type=float, default=60.0, help="seconds to spend on waiting for quiet, in all")


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
    calls: Mapping[str, Call], protocol: Protocol, label: str = "", probe: Probe | None = None
) -> Measurement:
    """Measures every call (by name; each is called once beforehand, to warm up) once a round, in random order.

    `label` is shown beside the progress bar; `probe` may be one that earlier runs have used.
    """
    draw = random.Random(protocol.seed)
    probe = probe or Probe()
    patience = Patience(protocol.patience)
    windows: list[Window] = []
    with torch.no_grad():
        for call in calls.values():
            call()
        for _ in range(5):
            probe.gflops()
        with tqdm(total=protocol.rounds * len(calls), desc=label, leave=False, disable=None) as bar:
            for number in range(protocol.rounds):
                names = list(calls)
                draw.shuffle(names)
                for name in names:
                    windows.append(_take(name, number, calls[name], protocol, probe, patience))
                    bar.update()
    return Measurement(tuple(windows), probe.best)


class Patience:
    """Seconds that may still be spent on quiet."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def spend(self, since: float) -> bool:
        """Takes off the time since `since` (of `time.perf_counter`); true if any is left."""
        self.left -= time.perf_counter() - since
        return self.left > 0


def _take(name: str, number: int, call: Call, protocol: Protocol, probe: Probe, patience: Patience) -> Window:
    """One window, taken again while the machine is disturbed and patience lasts; the one with the best probe counts."""
    taken: list[Window] = []
    while True:
        time.sleep(protocol.pause)
        begin = time.perf_counter()
        while (before := probe.gflops()) < protocol.accept * probe.best and patience.spend(begin):
            begin = time.perf_counter()
            time.sleep(0.1)
        begin, meter = time.perf_counter(), StealMeter()
        durations = measure_window(call, protocol.window)
        steal = meter.fraction()
        lower = min(before, probe.gflops())
        median, fastest = statistics.median(durations), min(durations)
        taken.append(Window(name, number, median, fastest, len(durations), lower, steal))
        if lower >= protocol.accept * probe.best or not patience.spend(begin):
            return max(taken, key=lambda window: window.probe)
