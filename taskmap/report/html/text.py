"""Text for a page: escaped, with numbers in suitable units."""

from __future__ import annotations

import html
import re

_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that neither HTML nor XML allows, and those that change the writing direction: names come from models."""


def esc(text: object) -> str:
    """``text`` for use between tags or in a quoted attribute."""
    return html.escape(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True)


def clipped(text: str, length: int) -> str:
    """The first ``length`` characters, with an ellipsis for the rest."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def duration(seconds: float | None) -> str:
    """Seconds as text; "" for None."""
    if seconds is None:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def scaled(value: float | None, unit: str) -> str:
    """A number with a suitable prefix; "" for None."""
    if value is None:
        return ""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} P{unit}"
