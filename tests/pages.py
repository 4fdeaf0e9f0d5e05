"""Pages of docs/ that are programs: their blocks run in order, and their output is compared.

```python           runs
```python refused   raises an error of taskmap; its text counts as output
```text             the output of the previous block
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path
from typing import Any

import pytest

from taskmap.ir.errors import TaskmapError

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(python refused|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SYMBOL = re.compile(r"\b(tm_\w+)_[0-9a-f]{8}\b")


def run(code: str, file: Path, names: dict[str, Any], *, refused: bool) -> str:
    """The output of a block, or the text of its refusal."""
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


def run_page(name: str, folder: Path) -> dict[str, Any]:
    """Run the page, compare its output, and return the names it defined. folder: for the files of its blocks."""
    names: dict[str, Any] = {"__name__": "kernels"}
    printed = ""
    for number, (kind, text) in enumerate(BLOCK.findall((DOCS / name).read_text(encoding="utf-8"))):
        if kind == "text":
            assert plain(printed) == plain(text.rstrip()), f"{name} shows another output than\n{printed}"
            printed = ""
            continue
        assert not printed, f"the page does not show this output:\n{printed}"
        place = folder / str(number)
        place.mkdir()
        printed = run(text, place / "kernels.py", names, refused=kind.endswith("refused"))
    assert not printed, f"the page does not show this output:\n{printed}"
    return names


def plain(text: str) -> str:
    """Remove the part of a symbol that depends on every character of a kernel."""
    return _SYMBOL.sub(r"\1_........", text)
