"""Source locations: places in the user's program."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A span of one line of source.

    file: path as Python reports it. line: counted from 1. column, end_column: character offsets into `text`, counted
    from 0, the end exclusive; without an end the span is one character, and an end that is not after the column (the
    span continues on a later line) means the end of the line. text: the whole line, or "" if unknown.
    """

    file: str
    line: int
    column: int = 0
    end_column: int | None = None
    text: str = ""

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def snippet(self) -> str:
        """The line preceded by its location, with carets beneath the span; only the location without a text."""
        line = self.text.rstrip()
        if not line.strip():
            return str(self)
        indent = len(line) - len(line.lstrip())
        start = min(max(self.column, indent), len(line) - 1)
        end = start + 1 if self.end_column is None else min(self.end_column, len(line))
        if end <= start:
            end = len(line)
        place = f"{self}:  "
        # A tab before the span is repeated beneath it, so that the carets align at any tab width.
        padding = "".join("\t" if char == "\t" else " " for char in line[indent:start])
        return f"{place}{line[indent:]}\n{' ' * len(place)}{padding}{'^' * (end - start)}"
