"""The output of commands: tables for people, JSON for programs; colours and bars only on a terminal."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from taskmap.backend.store.limit import bytes_of as size_in_bytes
from taskmap.cli.parser import Parser

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "grey": 90, "bold": 1}
# Terminal control characters, characters that change the writing direction, and unpaired surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_WIDEST = 200


class Help(argparse.RawDescriptionHelpFormatter):
    """--help as wide as the terminal, up to 110 columns, with descriptions beside the options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(110, shutil.get_terminal_size((100, 24)).columns))
        self._action_max_length = 14  # argparse ignores the commands' indentation and breaks after the longest


def command(name: str, description: str, example: str, no: str = "the answer is no") -> argparse.ArgumentParser:
    """The parser of a command; every one has --json, and shows an example and the exit status in its --help.

    no: the meaning of exit status 1.
    """
    made = Parser(
        prog=f"taskmap {name}",
        description=description,
        epilog=f"example: {example}\n\n{status_text(no)}",
        formatter_class=Help,
    )
    made.add_argument("--json", action="store_true", help="print JSON, for programs")
    return made


def status_text(no: str) -> str:
    """The meaning of exit statuses, for --help."""
    return f"exit status: 0 done; 1 done, and {no}; 2 invalid usage or impossible; 130 interrupted"


def print_json(value: Any) -> None:
    """Print one JSON document; numbers without a JSON form become null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def answer(as_json: bool, content: object, text: str) -> None:
    """Print the content as JSON, or else the text."""
    print_json(content) if as_json else print(text)


def plain(text: str) -> str:
    """``text`` without terminal control characters: names come from models and from other machines."""
    return _CONTROLS.sub("?", text)


def clipped(text: str, widest: int = _WIDEST) -> str:
    """``text`` in a form for one line, cut if it is long."""
    shown = plain(text[: widest + 1])
    return shown if len(text) <= widest else f"{shown[: widest - 1]}…"


def plain_lines(text: str) -> str:
    """``text`` in a form for several lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def in_short(text: str) -> str:
    """The first line of ``text`` and the last, which in a traceback is the error."""
    found = text.strip().splitlines() or [""]
    return clipped(found[0]) if len(found) == 1 else f"{clipped(found[0])} ... {clipped(found[-1])}"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """``text`` in a colour if ``stream`` (standard output) is a terminal and NO_COLOR is not set."""
    shown = sys.stdout if stream is None else stream
    if not shown.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Columns under a header, the first ``left`` flush left and the others flush right."""
    lines = [tuple(plain(h) for h in header), *(tuple(clipped(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    texts = [
        "  ".join(
            c.ljust(w) if n < left else c.rjust(w) for n, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([paint(texts[0], "bold"), *texts[1:]])


def duration(seconds: float) -> str:
    """Seconds as text in a suitable unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if math.isfinite(seconds) else "-"


def size(count: float) -> str:
    """Bytes as text in a suitable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def bytes_of(text: str) -> int:
    """The number of bytes given by ``text`` ("500M"); for argparse, which reports a ValueError as a refusal."""
    try:
        return size_in_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def count(text: str) -> int:
    """A whole number of at least 0, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds, for argparse."""
    return _amount(text, "is not a number of seconds")


def tolerance(text: str) -> float:
    """A finite number of at least 0, for argparse."""
    return _amount(text, "is not a number of at least 0")


def _amount(text: str, refusal: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}")
    return value


class Bar:
    """A progress bar on a terminal; elsewhere a line on stderr after each item."""

    def __init__(self, what: str, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
        self._bar: Any = None
        self._last = ""

    def show(self, done: int, total: int, more: str = "") -> None:
        """``done`` of ``total`` are done; ``more`` is appended."""
        if self._quiet:
            return
        if sys.stderr.isatty():
            self._on_terminal(done, total, more)
            return
        line = f"{self._what}: {done}/{total} {more}".rstrip()
        if line != self._last:
            print(line, file=sys.stderr, flush=True)
        self._last = line

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def _on_terminal(self, done: int, total: int, more: str) -> None:
        if self._bar is None:
            self._bar = _tqdm()(desc=self._what, total=total, leave=False, file=sys.stderr)
        self._bar.total = total
        self._bar.update(done - self._bar.n)
        self._bar.set_postfix_str(more, refresh=bool(more))


def _tqdm() -> Callable[..., Any]:
    from tqdm import tqdm  # noqa: PLC0415  loaded only when a bar is shown

    return tqdm  # type: ignore[no-any-return]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value
