"""The shell guides work when followed literally, and the comparison can fail."""

import re
from pathlib import Path

import pytest

from .shell_pages import DOCS, matches, run_page, steps

ROW = " 1.00– 1.02    3 ███"


@pytest.mark.parametrize("page", ["run-an-onnx-model.md", "what-the-cache-holds.md"])
def test_the_commands_of_a_page_run(
    page: str, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    session = run_page(page, folder)
    text = (DOCS / page).read_text(encoding="utf-8")
    assert session.commands == [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def test_the_messages_that_a_page_explains_exist() -> None:
    """The longest part of each message that does not depend on the model is in the source."""
    text = (DOCS / "run-an-onnx-model.md").read_text(encoding="utf-8").partition("## When it does not work")[2]
    messages = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    rooms = [DOCS.parent / room for room in ("taskmap", "graph", "backend")]
    source = "\n".join(path.read_text(encoding="utf-8") for room in rooms for path in room.rglob("*.py"))
    parts = [
        max(re.split(r" ?(?:'x'|the page|float64|\bx$|\d+(?: operators| nodes)?) ?", message), key=len)
        for message in messages
    ]
    assert len(messages) > 8
    assert [part for part in parts if part not in source] == []


def test_a_block_is_cut_into_commands_and_what_they_print() -> None:
    assert steps("$ one\na\nb\n$ two\n") == [("one", "a\nb"), ("two", "")]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("took 1.5 ms", "took 300 µs\n", True),
        ("took 1.5 ms", "took long\n", False),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a\n...\nd", "a\nb\nc\n", False),
        ("a ... d", "a b c d", True),
        ("", "something", False),
        ("cpu.matmul(tile=6x2)  x", "cpu.matmul(tile=14x2v, rows=3) x", True),
        ("cpu.rows(tile=6x2)", "cpu.matmul(tile=6x2)", False),
        ("y: equal to reference", "y: different to reference", False),
        ("a=1  ok  yes  1.00\n...", "a=1  ok  yes  1.00  default\na=2  ok  yes  1.10", True),
        ("a=1  ok  yes  1.00", "a=1  ok  yes  1.00  other", False),
        (f"{ROW}  ← default\n...\n7 of 9", f"{ROW}\n 1.02– 1.05    0 \n 1.05–         1 █  ← default\n7 of 9", True),
        (f"{ROW}  ← default\n...\n7 of 9", " 1.00–         7 █  ← default\n7 of 9", True),
        (f"{ROW}  ← default\n...\n7 of 9", f"{ROW}\n 1.02–         1 █\n7 of 9", False),
        (f"{ROW}  ← default\n...\n7 of 9", f"{ROW}  ← best\n7 of 9", False),
    ],
)
def test_what_counts_in_a_comparison(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) == same
