"""Refusals: a primitive used illegally, with the user's line, the spec, the reason, a way out, and the tree so far."""

from __future__ import annotations

import linecache
import os
import re
import sys

from taskmap.ir.decompose.show import show
from taskmap.ir.decompose.steps import Tree
from taskmap.ir.errors import ScheduleError
from taskmap.ir.source import SourceLocation

_HERE = os.path.dirname(os.path.abspath(__file__))
_OURS = (_HERE, os.path.join(_HERE, "micro"), os.path.join(os.path.dirname(_HERE), "util"))


def users_line(word: str) -> SourceLocation | None:
    """The innermost line outside this package, with its use of the primitive ``word``."""
    frame = sys._getframe(1)
    while frame and os.path.dirname(os.path.abspath(frame.f_code.co_filename)) in _OURS:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).rstrip("\n")
    used = re.search(rf"\.{word}\(", text) or re.search(rf"(?<!\w){word}\(", text)
    column = text.index(word, used.start()) if used else len(text) - len(text.lstrip())
    end = column + len(word) if used else None
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno, column, end, text)


def refusal(word: str, tree: Tree, why: str, way_out: str, *, where: SourceLocation | None = None) -> ScheduleError:
    """The error of a primitive that cannot be applied to a tree."""
    so_far = "\n".join(f"    {line}" for line in show(tree).splitlines())
    return ScheduleError(
        f"cannot apply {word} to {tree.spec}",
        where=where or users_line(word.partition("(")[0]),
        why=why,
        hint=f"{way_out}\nThe tree so far:\n{so_far}",
    )
