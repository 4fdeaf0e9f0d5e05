"""docs/write-a-kernel.md: its code is run, and what it prints is what the page says."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path
from typing import Any

import pytest

from taskmap.ir.errors import TaskmapError

PAGE = Path(__file__).parents[2] / "docs" / "write-a-kernel.md"
BLOCK = re.compile(r"^```(python refused|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(code: str, file: Path, names: dict[str, Any], *, refused: bool) -> str:
    """What a block prints, or what it is refused with."""
    file.write_text(code, encoding="utf-8")
    linecache.checkcache(str(file))
    out = io.StringIO()
    program = compile(code, str(file), "exec")
    if refused:
        with pytest.raises(TaskmapError) as error:
            exec(program, names)
        return str(error.value)
    with contextlib.redirect_stdout(out):
        exec(program, names)
    return out.getvalue().rstrip()


def test_the_page(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 15
    names: dict[str, Any] = {"__name__": "kernels"}
    printed = ""
    for number, (kind, text) in enumerate(blocks):
        if kind == "text":
            assert printed == text.rstrip()
            printed = ""
            continue
        assert not printed, f"the page does not show this output:\n{printed}"
        folder = tmp_path / str(number)
        folder.mkdir()
        printed = run(text, folder / "kernels.py", names, refused=kind.endswith("refused"))
    assert not printed
