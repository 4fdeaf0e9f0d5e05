"""The distribution of a space as text: a histogram of configurations by time relative to the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskmap.cli.output import paint

_WIDTH = 44
_EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)


def distribution(times: Sequence[float], marks: Mapping[str, float]) -> str:
    """A histogram of ``times`` relative to the fastest of them; ``marks``: named times to point out."""
    if not times:
        return "nothing measured"
    best = min(times)
    edges = [e for e in _EDGES if e <= max(times) / best] or [1.0]
    counts = [0] * len(edges)
    named: list[list[str]] = [[] for _ in edges]
    for time in times:
        counts[_bin(edges, time / best)] += 1
    for name, time in marks.items():
        named[_bin(edges, time / best)].append(name)
    lines = ["time / best   configurations"]
    for n, (count, names) in enumerate(zip(counts, named, strict=True)):
        above = f"{edges[n + 1]:5.2f}" if n + 1 < len(edges) else "     "
        bar = "█" * max(round(_WIDTH * count / max(counts)), 1 if count else 0)
        note = f"  ← {', '.join(names)}" if names else ""
        lines.append(f"{edges[n]:5.2f}–{above} {count:4d} {paint(bar, 'green' if n == 0 else 'grey')}{note}")
    return "\n".join(lines)


def _bin(edges: Sequence[float], ratio: float) -> int:
    return max((n for n, edge in enumerate(edges) if ratio >= edge), default=0)
