"""Decides which configurations are still worth measuring, and which has won: pure functions of the samples.

Samples of one configuration come from several jobs, perhaps on several machines; each job measures the baseline, too,
and times are relative to it. First looks are taken while other configurations compile, which may slow down
a configuration, or its baseline, by a factor of several: a look decides whether a configuration is worth measuring, and
is discarded after that measurement.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from taskmap.tuning.record import typical

Samples = Mapping[str, Sequence[float]]

_DOUBT = 0.5
"""The best sample of a configuration may exceed the leader's time by this fraction when there is one sample; with n
samples, by 1/n of it."""
_LEAST_DOUBT = 0.02
_CLOSE = 0.01
"""Configurations that differ by less than this count as equal."""
_ENOUGH = 12
"""More samples than this add nothing."""
_SURPRISE = 1.25
"""A look that exceeds the expected time by more than this factor is not believed."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The samples of one job, in seconds. look: taken while compilers ran."""

    samples: Samples
    look: bool = False


def united(heats: Sequence[Heat], baseline: str) -> dict[str, tuple[float, ...]]:
    """All samples, each heat scaled so that its baseline takes as long as in the last heat; looks
    only of configurations without other measurements."""
    heats = [h for h in heats if h.samples.get(baseline)]
    if not heats:
        return {}
    standard = typical(heats[-1].samples[baseline])
    sure = confirmed(heats)
    found: dict[str, list[float]] = {}
    for heat in heats:
        factor = standard / typical(heat.samples[baseline])
        for config, seconds in heat.samples.items():
            if heat.look and config in sure:
                continue
            found.setdefault(config, []).extend(s * factor for s in seconds)
    return {config: tuple(seconds) for config, seconds in found.items() if seconds}


def confirmed(heats: Sequence[Heat]) -> frozenset[str]:
    """The configurations that were measured while nothing was compiling."""
    return frozenset(c for heat in heats if not heat.look for c, seconds in heat.samples.items() if seconds)


def leader(samples: Samples) -> str:
    """The fastest configuration; of equally fast ones, the first by name."""
    return min(samples, key=lambda c: (typical(samples[c]), c))


def survivors(samples: Samples) -> tuple[str, ...]:
    """The configurations that may still turn out to be the fastest, in order of time."""
    if not samples:
        return ()
    best = typical(samples[leader(samples)])
    ranked = sorted(samples, key=lambda c: (typical(samples[c]), c))
    return tuple(c for c in ranked if min(samples[c]) <= best * (1 + max(_LEAST_DOUBT, _DOUBT / len(samples[c]))))


def decided(samples: Samples) -> bool:
    """True if more measurements would not change the result by anything that matters."""
    left = survivors(samples)
    if len(left) < 2:
        return True
    fewest = min(len(samples[c]) for c in left)
    slowest = max(typical(samples[c]) for c in left)
    close = slowest <= typical(samples[left[0]]) * (1 + _CLOSE)
    return fewest >= _ENOUGH or (close and fewest >= _ENOUGH // 2)


def surprises(samples: Samples, expected: Mapping[str, float]) -> tuple[str, ...]:
    """The configurations that are slower, relative to the leader, than ``expected`` says; its costs have any unit."""
    if not samples:
        return ()
    first = leader(samples)
    best, cost = typical(samples[first]), expected.get(first, math.inf)
    return tuple(
        c
        for c in sorted(samples)
        if c in expected and typical(samples[c]) * cost > _SURPRISE * expected[c] * best and cost < math.inf
    )


def doubtful(samples: Samples, sure: Collection[str], expected: Mapping[str, float]) -> tuple[str, ...]:
    """The configurations outside ``sure`` whose look must not be believed: they may be the fastest, or they were
    expected to be faster than their look."""
    return tuple(c for c in dict.fromkeys([*survivors(samples), *surprises(samples, expected)]) if c not in sure)


def next_round(samples: Samples, sure: Collection[str], expected: Mapping[str, float]) -> tuple[str, ...]:
    """The configurations to measure next: possible winners and doubtful ones; empty when the race is decided."""
    doubts = doubtful(samples, sure, expected)
    if decided(samples) and not doubts:
        return ()
    return tuple(dict.fromkeys([*survivors(samples), *doubts]))
