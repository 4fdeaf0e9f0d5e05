"""Programs that script refuses: every message shows the user's line with a caret, and most say how to fix it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from taskmap.ir.errors import ScriptError, TaskmapError
from taskmap.ir.script.read import build, kernel, script
from taskmap.ir.script.source import read_source
from taskmap.ir.source import SourceLocation
from tests.ir.script import script_refused

MODULE = script_refused.__name__
HELPERS = {"broken"}
PROGRAMS = {
    name: f
    for name, f in vars(script_refused).items()
    if inspect.isfunction(f) and f.__module__ == MODULE and name not in HELPERS
}


def refusal(program: Callable[..., Any]) -> TaskmapError:
    """The error of reading a program."""
    on_gpu = program.__name__.startswith("gpu_")
    decorator = kernel(grid=(1,), threads=32, predicated=False) if on_gpu else kernel()
    with pytest.raises(TaskmapError) as error:
        decorator(program)
    return error.value


def test_there_are_enough_of_them() -> None:
    assert len(PROGRAMS) > 80


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_refusal_has_a_place_a_reason_and_a_caret(program: Callable[..., Any]) -> None:
    error = refusal(program)
    assert isinstance(error.where, SourceLocation)
    assert "^" in str(error)
    assert "script_refused.py" in str(error)
    assert error.why or error.hint


def test_the_messages(golden: Callable[[str, str], None]) -> None:
    """Lines are counted from the function's first, so that programs may be added above it."""
    functions = [getattr(f, "function", f) for f in vars(script_refused).values()]
    starts = sorted(f.__code__.co_firstlineno for f in functions if inspect.isfunction(f) and f.__module__ == MODULE)

    def relative(match: re.Match[str]) -> str:
        line = int(match[2])
        first = max((s for s in starts if s <= line), default=0)
        return match[1] + f"+{line - first}".rjust(len(match[2]))

    parts = [re.sub(r"(script_refused\.py:|on line )(\d+)", relative, str(refusal(f))) for f in PROGRAMS.values()]
    golden("script_refused.txt", "\n\n".join(parts))


def test_an_error_in_a_helper_is_shown_in_the_helper() -> None:
    error = refusal(script_refused.conditional_return)
    assert isinstance(error.where, SourceLocation)
    assert error.where.text.strip() == "return x"


def double(x: Any) -> Any:
    """A helper that is a value."""
    return x * 2.0


def test_a_helper_is_not_called_from_python() -> None:
    with pytest.raises(ScriptError, match="called from Python"):
        script(double)(1.0)


def test_build_refuses_a_value_and_wrong_arguments() -> None:
    with pytest.raises(ScriptError, match="returns a value"):
        build(double, 1.0)
    with pytest.raises(ScriptError, match="too many positional"):
        build(double, 1.0, 2.0)


@pytest.mark.parametrize("what", [lambda x: x, len, int, 3])
def test_only_functions_are_read(what: Any) -> None:
    with pytest.raises(ScriptError, match="not a function written with def"):
        read_source(what)


def test_a_function_without_a_file_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(): pass", namespace)
    with pytest.raises(ScriptError, match="Write the function in a file"):
        kernel(namespace["f"])


async def waits() -> None:
    """Not plain."""


def test_an_async_function_is_refused() -> None:
    with pytest.raises(ScriptError, match="not a plain function"):
        kernel(waits)
