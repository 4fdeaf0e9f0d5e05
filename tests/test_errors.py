"""The form of an error, and that every error has it."""

import pickle

import pytest

from taskmap import errors
from taskmap.errors import IndexOutOfRangeError, ScriptError, TaskmapError
from taskmap.ir import errors as defined
from taskmap.ir.source import SourceLocation

LINE = "    for i, j in spatial(8, 8).on(thread):\n"
SPAN = SourceLocation("/home/a/kernels.py", 14, 16, 29, LINE)


def test_the_whole_form() -> None:
    error = ScriptError("cannot compile kernel 'copy'", where=SPAN, why="64 workers,\n128 threads.", hint="Use 64.")
    assert str(error) == (
        "taskmap: cannot compile kernel 'copy'\n"
        "  kernels.py:14:  for i, j in spatial(8, 8).on(thread):\n"
        "                              ^^^^^^^^^^^^^\n"
        "  64 workers,\n"
        "  128 threads.\n"
        "  Use 64."
    )


def test_a_single_message() -> None:
    assert str(TaskmapError("no such axis")) == "taskmap: no such axis"


@pytest.mark.parametrize(
    ("column", "end", "text", "carets"),
    [
        (0, 1, "x = 1", "^"),
        (4, None, "x = 12", "    ^"),
        (4, 99, "x = 12", "    ^^"),
        (4, 2, "x = 12", "    ^^"),  # the span ends in a later line
        (99, 100, "x = 12", "     ^"),
        (0, 6, "    x = 12", "^^"),
        (5, 6, "\tx =\t1", "   \t^"),
    ],
)
def test_carets(column: int, end: int | None, text: str, carets: str) -> None:
    first, second = SourceLocation("a.py", 3, column, end, text).snippet().splitlines()
    assert first == f"a.py:3:  {text.strip()}"
    assert second == " " * len("a.py:3:  ") + carets


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_place_without_its_text(text: str) -> None:
    assert SourceLocation("a.py", 3, 1, 2, text).snippet() == "a.py:3"
    assert str(TaskmapError("no", where="in the third input")) == "taskmap: no\n  in the third input"


def test_the_innermost_place_stays() -> None:
    error = ScriptError("no")
    assert error.at(SPAN) is error
    assert error.at("elsewhere").where == SPAN


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_the_form_and_travels_between_processes(name: str) -> None:
    kind = getattr(errors, name)
    assert kind.__doc__
    assert issubclass(kind, TaskmapError)
    copy = pickle.loads(pickle.dumps(kind(what="a", where=SPAN, why="b", hint="c")))
    assert type(copy) is kind
    assert str(copy) == str(kind("a", where=SPAN, why="b", hint="c"))


def test_every_error_is_public() -> None:
    assert {
        name for name, value in vars(defined).items() if isinstance(value, type) and issubclass(value, TaskmapError)
    } == {*errors.__all__}


def test_an_index_out_of_range_ends_an_iteration_as_python_expects() -> None:
    assert issubclass(IndexOutOfRangeError, IndexError)
