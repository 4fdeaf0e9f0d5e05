"""The progress bar: only after a second, and only on a terminal; lines elsewhere, if a command asks for them."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

from taskmap.cli import main
from taskmap.util import progress as module
from taskmap.util.progress import progress, progress_in_lines, waiting, waits_shown


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
    """Lines appear no faster than one can read them."""
    stream = Terminal(False)
    monkeypatch.setattr(sys, "stderr", stream)
    now = [0.0]
    monkeypatch.setattr("taskmap.util.progress.time.monotonic", lambda: now[0])
    with progress_in_lines(), progress("testing", 9) as show:
        for done in range(1, 10):
            now[0] += 0.5
            show(done, 9)
    assert stream.getvalue().splitlines() == ["taskmap: testing: 4/9", "taskmap: testing: 8/9"]
    with progress("testing", 9) as show:
        now[0] += 60
        show(1, 9)
    assert len(stream.getvalue().splitlines()) == 2


@pytest.mark.parametrize(
    ("terminal", "shown", "patience", "said"),
    [(True, True, 0.0, True), (True, True, 60.0, False), (False, True, 0.0, False), (True, False, 0.0, False)],
)
def test_a_wait_is_said(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: bool, patience: float, said: bool
) -> None:
    """The wait is shown on a terminal, if a command asks for it, after a while; and then removed."""
    stream = Terminal(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "_PATIENCE", patience)
    monkeypatch.setattr(module, "_BETWEEN_SECONDS", 0.01)

    def fail() -> None:
        deadline = time.monotonic() + 10
        while said and stream.getvalue().count("taskmap: loading") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyError

    with waits_shown(shown), pytest.raises(KeyError), waiting("loading"):
        fail()
    assert (stream.getvalue().count("taskmap: loading, 0 s") >= 3) is said
    assert not said or stream.getvalue().endswith("\r\x1b[K")
    before = stream.getvalue()
    with waiting("loading"):
        pass
    assert stream.getvalue() == before


def test_commands_say_that_they_load_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands stay quiet with --json."""
    waits: list[str] = []

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        if module._waits_shown:
            waits.append(what)
        yield

    for place in ("cli.loading", "onnx.model", "onnx.program"):
        monkeypatch.setattr(f"taskmap.{place}.waiting", noted)
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy")
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    model = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), model)
    assert main(["run", str(model), "--json", "--fresh"]) == 0
    assert not waits
    assert main(["run", str(model), "--fresh"]) == 0
    assert waits == ["loading onnx", "reading the model", "reading the model's nodes"]
