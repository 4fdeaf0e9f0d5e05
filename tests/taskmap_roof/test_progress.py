"""The progress bar: only after a second, and only on a terminal; lines elsewhere, where a command wants them."""

from __future__ import annotations

import io
import sys

import pytest

from taskmap import progress as module
from taskmap.progress import progress, progress_in_lines


class Terminal(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("terminal", "patience", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_a_bar_is_shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, patience: float, shown: bool) -> None:
    stream = Terminal(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "_PATIENCE", patience)
    with progress("testing", 3) as show:
        for done in range(1, 4):
            show(done, 3, f"best {done} µs")
    assert ("taskmap: testing" in stream.getvalue()) is shown
    assert ("best 3 µs" in stream.getvalue()) is shown


def test_lines_are_for_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more of them than one can read."""
    stream = Terminal(False)
    monkeypatch.setattr(sys, "stderr", stream)
    now = [0.0]
    monkeypatch.setattr("taskmap.progress.time.monotonic", lambda: now[0])
    with progress_in_lines(), progress("testing", 9) as show:
        for done in range(1, 10):
            now[0] += 0.5
            show(done, 9)
    assert stream.getvalue().splitlines() == ["taskmap: testing: 4/9", "taskmap: testing: 8/9"]
    with progress("testing", 9) as show:
        now[0] += 60
        show(1, 9)
    assert len(stream.getvalue().splitlines()) == 2
