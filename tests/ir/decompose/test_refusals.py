"""Every refusal says the primitive, the user's line, the spec, the reason, a way out, and the tree so far."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from taskmap.ir.errors import ScheduleError
from tests.ir.decompose import refused, refused_cores, refused_leaves

HELPERS = ("block", "threads", "halves", "element_wise", "product")
PROGRAMS: dict[str, Callable[[], None]] = {
    name: f
    for module in (refused, refused_cores, refused_leaves)
    for name, f in vars(module).items()
    if inspect.isfunction(f) and f.__module__ == module.__name__ and name not in HELPERS
}


def message(program: Callable[[], None]) -> str:
    with pytest.raises(ScheduleError) as caught:
        program()
    return str(caught.value)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_refusal_is_complete(name: str) -> None:
    """Action, place with the line's text, reason, way out and tree, each on lines of its own."""
    text = message(PROGRAMS[name])
    assert re.match(r"taskmap: cannot apply \w+(\(.*\))? to \w+\(.*\)\n", text)
    assert re.search(r"^  refused\w*\.py:\d+:  .*\n +\^", text, re.MULTILINE)
    assert "  The tree so far:\n      " in text
    assert len(text.splitlines()) >= 7


def test_the_messages(golden: Callable[[str, str], None]) -> None:
    assert len(PROGRAMS) >= 25
    parts = []
    for name, program in PROGRAMS.items():
        first = inspect.getsourcelines(program)[1]
        text = re.sub(r"refused\w*\.py:(\d+)", lambda m, first=first: f"line {int(m[1]) - first}", message(program))  # type: ignore[misc]  # bound here
        parts.append(f"{name}\n{text}")
    golden("decompose_refused.txt", "\n\n".join(parts))
