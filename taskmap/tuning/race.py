"""Which configurations are still worth measuring, and which has won: pure functions of the samples.

Samples of one configuration come from several jobs, perhaps on several machines; each job measures the baseline too,
and times count relative to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taskmap.tuning.record import typical

Samples = Mapping[str, Sequence[float]]

_DOUBT = 0.5
"""How far the best sample of a configuration may lie above the leader's time when there is one sample; with n samples
a fraction 1/n of it."""
_LEAST_DOUBT = 0.02
_CLOSE = 0.01
"""Configurations nearer to each other than this are as good as equal."""
_ENOUGH = 12
"""Samples after which nothing is learned from more."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The samples of one job, in seconds."""

    samples: Samples


def united(heats: Sequence[Heat], baseline: str) -> dict[str, tuple[float, ...]]:
    """All samples, each heat's scaled so that its baseline takes what the baseline takes in the last heat."""
    heats = [h for h in heats if h.samples.get(baseline)]
    if not heats:
        return {}
    standard = typical(heats[-1].samples[baseline])
    found: dict[str, list[float]] = {}
    for heat in heats:
        factor = standard / typical(heat.samples[baseline])
        for config, seconds in heat.samples.items():
            found.setdefault(config, []).extend(s * factor for s in seconds)
    return {config: tuple(seconds) for config, seconds in found.items() if seconds}


def leader(samples: Samples) -> str:
    """The fastest configuration; of equally fast ones, the first by name."""
    return min(samples, key=lambda c: (typical(samples[c]), c))


def survivors(samples: Samples) -> tuple[str, ...]:
    """The configurations that may still turn out to be the fastest, fastest first."""
    if not samples:
        return ()
    best = typical(samples[leader(samples)])
    ranked = sorted(samples, key=lambda c: (typical(samples[c]), c))
    return tuple(c for c in ranked if min(samples[c]) <= best * (1 + max(_LEAST_DOUBT, _DOUBT / len(samples[c]))))


def decided(samples: Samples) -> bool:
    """Whether measuring more would change nothing worth having."""
    left = survivors(samples)
    if len(left) < 2:
        return True
    fewest = min(len(samples[c]) for c in left)
    slowest = max(typical(samples[c]) for c in left)
    close = slowest <= typical(samples[left[0]]) * (1 + _CLOSE)
    return fewest >= _ENOUGH or (close and fewest >= _ENOUGH // 2)
