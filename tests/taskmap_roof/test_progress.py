"""The progress bar: only after a second, and only on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from taskmap import progress as module
from taskmap.progress import progress


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
            show(done, 3)
    assert ("taskmap: testing" in stream.getvalue()) is shown
