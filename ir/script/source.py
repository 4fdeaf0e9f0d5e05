"""Reading a Python function: its syntax tree, and the location of each node in the user's file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskmap.ir.errors import ScriptError
from taskmap.ir.source import SourceLocation


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A function's syntax tree. first: the file's line number of ``lines[0]``."""

    name: str
    file: str
    first: int
    lines: tuple[str, ...]
    tree: ast.FunctionDef

    def at(self, node: ast.AST) -> SourceLocation:
        """The location of a node; a node of several lines is shown to the end of its first line."""
        line: int = getattr(node, "lineno", self.tree.lineno)
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        start = _column(text, getattr(node, "col_offset", 0))
        one_line = getattr(node, "end_lineno", line) == line
        end = _column(text, getattr(node, "end_col_offset", 0)) if one_line else None
        return SourceLocation(self.file, self.first + line - 1, start, end or len(text.rstrip()), text)


def _column(text: str, utf8: int) -> int:
    """Python counts columns in bytes of UTF-8; errors show characters."""
    return len(text.encode()[:utf8].decode(errors="ignore"))


def read_source(function: Callable[..., Any]) -> ScriptSource:
    """The source of a function. Raises ScriptError for anything but a plain function, and without a source."""
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function) or name == "<lambda>":
        raise ScriptError(
            f"cannot read {name} as script", why="it is not a function written with def.", hint="Write it with def."
        )
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise ScriptError(
            f"cannot read the source of {name}",
            why="script is read from the function's syntax tree.",
            hint="Write the function in a file; a line typed into a bare interpreter has no source.",
        ) from error
    tree = _parse(lines)
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    if not isinstance(tree, ast.FunctionDef):
        place = SourceLocation(file, first, 0, None, lines[0])
        raise ScriptError(f"cannot read {name} as script", where=place, why="it is not a plain function.")
    return ScriptSource(name, file, first, tuple(line.rstrip("\n") for line in lines), tree)


def _parse(lines: list[str]) -> ast.stmt:
    """The first statement of the lines, which may be indented; columns remain those of the file."""
    if not lines[0][:1].isspace():
        return ast.parse("".join(lines)).body[0]
    block = ast.parse("if True:\n" + "".join(lines)).body[0]
    assert isinstance(block, ast.If)
    return ast.increment_lineno(block.body[0], -1)
